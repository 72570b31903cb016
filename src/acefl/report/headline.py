"""The result in one or two plain sentences, computed from the numbers and claiming no more than they show.

A method counts as behind only when it is behind on every seed: seeds share data and delays between methods, so the
comparison is within each seed, and one seed the other way is reason enough to say nothing.
"""

from __future__ import annotations

import math

from acefl.report import metrics
from acefl.report.metrics import Metric
from acefl.report.recorded import Comparison, Method
from acefl.report.tables import over_seeds


def sentences(comparison: Comparison) -> list[str]:
    """What to say at the top of the page."""
    said = []
    metric = metrics.primary(comparison)
    scored = [] if metric is None else _best_first(comparison, metric)
    if metric is not None and scored:
        said.append(_lone(scored[0], comparison) if len(scored) == 1 else _compared(scored, metric))
    if len(comparison.methods) > 1:
        said.append(_budget(comparison))
        if not any(method.tuning for method in comparison.methods):
            said.append("Learning rates were given, not tuned, so part of any difference may be theirs.")
    diverged = [method for method in comparison.methods if method.diverged]
    if diverged:
        parts = [f"{method.label} in {method.diverged} of {len(method.runs)}" for method in diverged]
        said.append(f"Runs that diverged: {', '.join(parts)}.")
    return said


def ahead(scored: list[Method], metric: Metric) -> list[Method]:
    """The methods before the widest gap in the ranking that holds on every seed; empty where no gap does."""
    cuts = sorted(range(1, len(scored)), key=lambda cut: -_gap(scored[cut - 1], scored[cut], metric))
    for cut in cuts:
        first, rest = scored[:cut], scored[cut:]
        seen = metric.write_short(_mean(first[-1], metric)) != metric.write_short(_mean(rest[0], metric))
        if seen and all(_behind(worse, better, metric) for better in first for worse in rest):
            return first
    return []


def _gap(better: Method, worse: Method, metric: Metric) -> float:
    """How far apart two means are: a difference, or a ratio for what is read on a log scale."""
    one, other = _mean(better, metric), _mean(worse, metric)
    if metric.log and one > 0 and other > 0:
        return abs(math.log(one / other))
    return abs(one - other)


def _behind(method: Method, other: Method, metric: Metric) -> bool:
    sign = 1.0 if metric.higher_is_better else -1.0
    theirs = {run.seed: run.final(metric.key) for run in other.runs}
    shared = [run for run in method.runs if run.seed in theirs]
    return bool(shared) and all(sign * run.final(metric.key) < sign * theirs[run.seed] for run in shared)


def _best_first(comparison: Comparison, metric: Metric) -> list[Method]:
    finite = [method for method in comparison.methods if math.isfinite(_mean(method, metric))]
    return sorted(finite, key=lambda method: _mean(method, metric), reverse=metric.higher_is_better)


def _mean(method: Method, metric: Metric) -> float:
    return over_seeds(method.finals(metric.key)).mean


def _compared(scored: list[Method], metric: Metric) -> str:
    first, last = ahead(scored, metric), scored[-1]
    seeds = min(len(method.runs) for method in scored)
    basis = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    if not first:
        values = _range([_mean(method, metric) for method in scored], metric)
        return f"No method stands out on every seed: {metric.heading} is {values} ({basis})."
    rest = scored[len(first) :]
    verb = metric.verbs[0 if len(first) == 1 else 1].format(_range([_mean(method, metric) for method in first], metric))
    few = len(rest) <= 2
    who = _listed([method.label for method in rest]) if few else f"the other {len(rest)} methods"
    others = _range([_mean(method, metric) for method in rest], metric)
    lowest = f", {last.label} last" if not few else ""
    return f"{_listed([method.label for method in first])} {verb}; {who} at {others}{lowest} ({basis})."


def _lone(method: Method, comparison: Comparison) -> str:
    parts = [f"{metric.heading} {metric.write(_mean(method, metric))}" for metric in metrics.columns(comparison)]
    run = method.runs[0]
    return (
        f"{method.label} ends at {_listed(parts)}, after {run.total('uploads'):,.0f} uploads and "
        f"{run.total('steps'):,.0f} server steps."
    )


def _budget(comparison: Comparison) -> str:
    uploads = [over_seeds([run.total("uploads") for run in method.runs]).mean for method in comparison.methods]
    steps = [over_seeds([run.total("steps") for run in method.runs]).mean for method in comparison.methods]
    if not all(math.isfinite(count) for count in uploads + steps):
        return "Budgets are in the table below."
    if _alike(uploads):
        spent = f"Every method received {_counted(uploads)} uploads"
        return f"{spent}." if _alike(steps) else f"{spent}, from which it took {_counted(steps)} server steps."
    taken = f"Methods took {_counted(steps)} server steps" if not _alike(steps) else f"{_counted(steps)} server steps"
    return f"{taken} cost {_counted(uploads)} uploads, depending on the method."


def _alike(counts: list[float]) -> bool:
    return max(counts) <= 1.01 * min(counts)


def _counted(counts: list[float]) -> str:
    return f"{max(counts):,.0f}" if _alike(counts) else f"{min(counts):,.0f} to {max(counts):,.0f}"


def _range(values: list[float], metric: Metric) -> str:
    shown = [metric.write_short(value) for value in sorted(values)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
