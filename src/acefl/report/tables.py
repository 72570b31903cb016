"""The results as a table: the one place where means and standard deviations over seeds are computed.

`summary_table` gives numbers, `readable` the same as text for a terminal or a page, `bold` what to print in bold and
`why_bold` the sentence under it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from acefl.report import metrics, recorded
from acefl.report.metrics import Metric
from acefl.report.recorded import Comparison, Method
from acefl.report.statistics import Scores, leaders
from acefl.report.statistics import why_bold as bold_explained

COSTS = {"steps": "server steps", "uploads": "uploads", "time": "virtual time"}  # of a real federation: seconds


@dataclass(frozen=True)
class Spread:
    """A number over seeds. The std is the sample one (n - 1 below), NaN for a single seed."""

    mean: float
    std: float


def over_seeds(values: list[float]) -> Spread:
    """Mean and sample std. A NaN stays one: the mean of the seeds that did not diverge would flatter the method."""
    array = np.asarray(values, dtype=float)
    std = float(array.std(ddof=1)) if len(array) > 1 else math.nan
    return Spread(float(array.mean()), std)


def summary_table(directory: Path) -> pd.DataFrame:
    """One row per method, best mean first: `method`, each metric with its `_std` and whether the method `_leads` by it,
    each cost with its `_std`, `lr`, and the counts `lrs_tried`, `seeds` and `diverged`.

    Ordered by slow-fifth held-out accuracy, or by the nearest thing the task measures. To lead is more than the best
    mean: see `acefl.report.statistics`.
    """
    return table_of(recorded.load(directory))


def table_of(comparison: Comparison) -> pd.DataFrame:
    """`summary_table` of what is already read."""
    shown = metrics.columns(comparison)
    leading = {metric.key: leaders(*scores_of(comparison.methods, metric)) for metric in shown}
    rows = []
    for method in comparison.methods:
        row: dict[str, object] = {"method": method.label}
        for metric in shown:
            spread = over_seeds(method.finals(metric.key))
            row |= {metric.key: spread.mean, f"{metric.key}_std": spread.std}
            row[f"{metric.key}_leads"] = method.label in leading[metric.key]
        for cost in COSTS:
            spread = over_seeds([run.total(cost) for run in method.runs])
            row |= {cost: spread.mean, f"{cost}_std": spread.std}
        rows.append(
            row
            | {"lr": method.lr, "lrs_tried": len(method.tuning), "seeds": len(method.runs), "diverged": method.diverged}
        )
    table = _best_first(pd.DataFrame(rows), metrics.primary(comparison))
    table.attrs["time"] = comparison.time_heading
    return table


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text, under headings for people: `0.971 ± 0.004`."""
    columns: dict[str, list[str]] = {"method": [str(label) for label in table["method"]]}
    for metric in _metrics_in(table):
        columns[metric.heading] = [
            metric.write(mean, std) for mean, std in zip(table[metric.key], table[f"{metric.key}_std"], strict=True)
        ]
    for cost, usual in COSTS.items():
        columns[table.attrs.get(cost, usual)] = [
            f"{mean:,.0f}" if math.isfinite(mean) else "–" for mean in table[cost].to_numpy(float).tolist()
        ]
    columns["tuned lr" if table["lrs_tried"].any() else "lr"] = [
        f"{lr:.4g}" if math.isfinite(lr) else "–" for lr in table["lr"].to_numpy(float).tolist()
    ]
    if table["diverged"].any():
        columns["diverged"] = [
            f"{d} of {n}" if d else "" for d, n in zip(table["diverged"], table["seeds"], strict=True)
        ]
    return pd.DataFrame(columns)


def scores_of(methods: Sequence[Method], metric: Metric) -> tuple[Scores, Scores]:
    """The scores of every method at the end and at the start, on the seeds that all of them have."""
    runs = [{run.seed: run for run in method.runs} for method in methods]
    seeds = [seed for seed in runs[0] if all(seed in own for own in runs)]
    labelled = list(zip([method.label for method in methods], runs, strict=True))
    finals = {name: metric.scores(own[seed].final(metric.key) for seed in seeds) for name, own in labelled}
    starts = {name: metric.scores(own[seed].start(metric.key) for seed in seeds) for name, own in labelled}
    return finals, starts


def bold(table: pd.DataFrame) -> pd.DataFrame:
    """Where `readable(table)` holds a method that leads its column. Costs are budgets, so nobody leads by them."""
    text = readable(table)
    marks = pd.DataFrame(False, index=text.index, columns=text.columns)
    for metric in _metrics_in(table):
        marks[metric.heading] = table[f"{metric.key}_leads"]
    return marks


def why_bold(table: pd.DataFrame) -> str:
    """The sentence under the table."""
    return bold_explained(len(table), int(table["seeds"].min()), bool(bold(table).any(axis=None)))


def _metrics_in(table: pd.DataFrame) -> list[Metric]:
    return [metric for metric in metrics.EVERY if metric.key in table.columns]


def _best_first(table: pd.DataFrame, by: Metric | None) -> pd.DataFrame:
    if by is None or by.key not in table.columns:
        return table
    ordered = table.sort_values(by.key, ascending=not by.higher_is_better, kind="stable", na_position="last")
    return ordered.reset_index(drop=True)
