"""The result in one or two plain sentences, computed from the numbers and claiming no more than they show.

Who is named as ahead and who as behind is decided as for the table's bold numbers: see `acefl.report.statistics`.
"""

from __future__ import annotations

import math

from acefl.core.metrics import Target
from acefl.report import metrics, slowest_node
from acefl.report.metrics import Metric
from acefl.report.recorded import Comparison, Method
from acefl.report.statistics import leaders, places
from acefl.report.tables import over_seeds, scores_of


def sentences(comparison: Comparison) -> list[str]:
    """What to say at the top of the page."""
    said = slowest_node.sentences(comparison)
    metric = metrics.primary(comparison)
    scored = [] if metric is None else _best_first(comparison, metric)
    if comparison.target is not None:
        said.append(_times(comparison, comparison.target))
    elif metric is not None and scored:
        said.append(_lone(scored[0], comparison) if len(scored) == 1 else _compared(scored, metric))
    if comparison.task.get("client_work"):
        said.append(str(comparison.task["client_work"]))
    if len(comparison.methods) > 1:
        said.append(_budget(comparison))
        if not any(method.tuning for method in comparison.methods):
            said.append("Learning rates were given, not tuned, so part of any difference may be theirs.")
    diverged = [method for method in comparison.methods if method.diverged]
    if diverged:
        parts = [f"{method.label} in {method.diverged} of {len(method.runs)}" for method in diverged]
        said.append(f"Runs that diverged: {', '.join(parts)}.")
    return said


def _times(comparison: Comparison, target: Target) -> str:
    """When each method reached the target, and on how many seeds; who never did is named too."""
    parts, never = [], []
    for method in comparison.methods:
        times = [time for run in method.runs if math.isfinite(time := run.time_to(target))]
        some = "" if len(times) == len(method.runs) else f" ({len(times)} of {len(method.runs)} seeds)"
        if times:
            parts.append((over_seeds(times).mean, f"{method.label} {over_seeds(times).mean:,.4g}{some}"))
        else:
            never.append(method.label)
    words = target.words(comparison.better)
    told = f"Mean time to {words}: {', '.join(text for _, text in sorted(parts))}." if parts else ""
    missed = f"{_listed(never)} did not reach {words}." if never else ""
    return f"{told} {missed}".strip()


def _best_first(comparison: Comparison, metric: Metric) -> list[Method]:
    finite = [method for method in comparison.methods if math.isfinite(method.mean(metric.key))]
    return sorted(finite, key=lambda method: method.mean(metric.key), reverse=metric.higher_is_better)


def _compared(scored: list[Method], metric: Metric) -> str:
    seeds = min(len(method.runs) for method in scored)
    basis = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    finals, starts = scores_of(scored, metric)
    leading, place = leaders(finals, starts), places(finals)
    first = [method for method in scored if method.label in leading]
    rest = [method for method in scored if place[method.label].behind]
    if not first:
        values = _range(scored, metric)
        return f"The seeds tell no method from the others: {metric.heading} is {values} ({basis})."
    said = f"{_listed([method.label for method in first])} {metric.verbs[len(first) > 1].format(_range(first, metric))}"
    if rest:
        few = len(rest) <= 2
        who = _listed([method.label for method in rest]) if few else f"{len(rest)} methods"
        lowest = "" if few else f", {rest[-1].label} last"
        said += f"; worse, {who} at {_range(rest, metric)}{lowest}"
    between = len(scored) - len(first) - len(rest)
    if between:
        said += f"; {between} cannot be placed"
    return f"{said} ({basis})."


def _lone(method: Method, comparison: Comparison) -> str:
    parts = [f"{metric.heading} {metric.write(method.mean(metric.key))}" for metric in metrics.columns(comparison)]
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


def _range(methods: list[Method], metric: Metric) -> str:
    shown = [metric.write_short(value) for value in sorted(method.mean(metric.key) for method in methods)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
