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

from acefl.core.metrics import Target
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

    Ordered by what the comparison went by, else by slow-fifth held-out accuracy or the nearest thing the task measures.
    To lead is more than the best mean: see `acefl.report.statistics`. Where runs had a target, `time_to_target` is the
    mean over the `reached` seeds that got there, the order is by it, and nobody leads by another metric: runs ended at
    different times.
    """
    return table_of(recorded.load(directory))


def table_of(comparison: Comparison) -> pd.DataFrame:
    """`summary_table` of what is already read."""
    shown, target = metrics.columns(comparison), comparison.target
    leading = {metric.key: set[str]() for metric in shown}
    if target is None:
        leading = {metric.key: leaders(*scores_of(comparison.methods, metric)) for metric in shown}
    first = leaders(times_to(comparison, target)) if target is not None else set()
    rows = []
    for method in comparison.methods:
        row: dict[str, object] = {"method": method.label}
        if target is not None:
            times = [time for run in method.runs if math.isfinite(time := run.time_to(target))]
            spread = over_seeds(times) if times else Spread(math.nan, math.nan)
            row |= {metrics.TIME_TO_TARGET: spread.mean, f"{metrics.TIME_TO_TARGET}_std": spread.std}
            row |= {f"{metrics.TIME_TO_TARGET}_leads": method.label in first, "reached": len(times)}
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
    order = metrics.primary(comparison)
    if target is not None and not comparison.by:
        order = metrics.time_to_target(target.words(comparison.better))
    table = _best_first(pd.DataFrame(rows), order)
    table.attrs |= {"time": comparison.time_heading, "better": dict(comparison.better)}
    if target is not None:
        table.attrs["target"] = target.words(comparison.better)
    return table


def times_to(comparison: Comparison, target: Target) -> Scores:
    """When every method reached the target, on the seeds that all of them have; infinity where it did not."""
    metric = metrics.time_to_target(target.words(comparison.better))
    times = {method.label: {run.seed: run.time_to(target) for run in method.runs} for method in comparison.methods}
    return metric.scores_by_seed(times)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text, under headings for people: `0.971 ± 0.004`."""
    columns: dict[str, list[str]] = {"method": [str(label) for label in table["method"]]}
    for metric in _metrics_in(table):
        written = [
            metric.write(mean, std) for mean, std in zip(table[metric.key], table[f"{metric.key}_std"], strict=True)
        ]
        columns[metric.heading] = _with_counts(table, written) if metric.key == metrics.TIME_TO_TARGET else written
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
    finals = {method.label: {run.seed: run.final(metric.key) for run in method.runs} for method in methods}
    starts = {method.label: {run.seed: run.start(metric.key) for run in method.runs} for method in methods}
    return metric.scores_by_seed(finals), metric.scores_by_seed(starts)


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


def _with_counts(table: pd.DataFrame, written: list[str]) -> list[str]:
    """A mean over some of the seeds says so."""
    told = []
    for text, reached, seeds in zip(written, table["reached"], table["seeds"], strict=True):
        whole = text if reached == seeds else f"{text} ({reached} of {seeds} seeds)"
        told.append(whole if reached else "not reached")
    return told


def _metrics_in(table: pd.DataFrame) -> list[Metric]:
    """Those that the table has, in its order."""
    keys = [str(name).removesuffix("_leads") for name in table.columns if str(name).endswith("_leads")]
    better, target = table.attrs.get("better", {}), metrics.time_to_target(table.attrs.get("target", "the target"))
    return [target if key == target.key else metrics.by_key(key, better) for key in keys]


def _best_first(table: pd.DataFrame, by: Metric | None) -> pd.DataFrame:
    if by is None or by.key not in table.columns:
        return table
    ordered = table.sort_values(by.key, ascending=not by.higher_is_better, kind="stable", na_position="last")
    return ordered.reset_index(drop=True)
