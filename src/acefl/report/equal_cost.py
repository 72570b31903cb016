"""Methods at equal cost: where each stood when all had received as many uploads, and when as much time had passed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from acefl.report import metrics
from acefl.report.figures import track
from acefl.report.metrics import Metric
from acefl.report.page import Cell, Table
from acefl.report.recorded import Comparison, Method, Run
from acefl.report.statistics import leaders
from acefl.report.style import Look
from acefl.report.tables import over_seeds, scores_of

_OTHER = {"arrival": "time", "time": "arrival"}


def table(comparison: Comparison, looks: Mapping[str, Look]) -> Table | None:
    """The main metric at equal uploads and at equal time, side by side; None where nothing can be compared."""
    metric = metrics.primary(comparison)
    if metric is None or len(comparison.methods) < 2:
        return None
    headings, columns = ["method"], [[Cell(method.label) for method in comparison.methods]]
    words = {"arrival": "uploads", "time": comparison.time_heading}
    when = "after {} seconds" if comparison.in_real_time else "at virtual time {}"
    said = {"arrival": "after {} uploads", "time": when}
    for budget, other in _OTHER.items():
        spent = shared(comparison, budget, metric.key)
        if spent is None:
            return None
        headings += [f"{metric.heading} {said[budget].format(_counted(spent))}", f"{words[other]} by then"]
        columns += [_scores(comparison, metric, budget, spent), _costs(comparison, budget, other, spent)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(headings, rows, "At equal uploads and at equal time", looks)


def shared(comparison: Comparison, budget: str, metric: str) -> float | None:
    """As far as every run was evaluated that did not diverge; None where one was not."""
    ends = [track(run.metrics, budget, metric)[0] for run in comparison.runs if not run.diverged]
    if not ends or any(len(end) == 0 or end[-1] <= 0 for end in ends):
        return None
    return float(min(end[-1] for end in ends))


def value_at(run: Run, budget: str, spent: float, column: str) -> float:
    """A column when so much was spent, on a straight line between evaluations; NaN for a run that diverged."""
    across, up = track(run.metrics, budget, column)
    return math.nan if run.diverged or len(across) == 0 else float(np.interp(spent, across, up))


def _scores(comparison: Comparison, metric: Metric, budget: str, spent: float) -> list[Cell]:
    by_seed = {
        method.label: {run.seed: value_at(run, budget, spent, metric.key) for run in method.runs}
        for method in comparison.methods
    }
    first = leaders(metric.scores_by_seed(by_seed), scores_of(comparison.methods, metric)[1])
    spreads = {label: over_seeds(list(own.values())) for label, own in by_seed.items()}
    return [Cell(metric.write(one.mean, one.std), label in first) for label, one in spreads.items()]


def _costs(comparison: Comparison, budget: str, other: str, spent: float) -> list[Cell]:
    means = [_mean_cost(method, budget, other, spent) for method in comparison.methods]
    return [Cell(_counted(mean) if math.isfinite(mean) else "–") for mean in means]


def _mean_cost(method: Method, budget: str, other: str, spent: float) -> float:
    return over_seeds([value_at(run, budget, spent, other) for run in method.runs]).mean


def _counted(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
