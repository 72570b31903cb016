"""How each method's learning rate was chosen, so that a reader can judge whether the effort was fair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from acefl.report import style
from acefl.report.drawing import Figure, Panel, Trace, line, marks
from acefl.report.metrics import by_key
from acefl.report.recorded import Comparison

_WORST_SHOWN = 8.0  # times the best loss: room for the part of the curves where a choice is made


def figure(comparison: Comparison) -> Figure | None:
    """What rates were chosen by against lr, the chosen lr ringed; crosses at the bad end are trials that diverged."""
    trials = {method.label: method.tuning for method in comparison.methods if method.tuning}
    looks, metric = style.looks(comparison.methods), by_key(comparison.objective, comparison.better)
    larger = metric.higher_is_better
    scores = [score for of_method in trials.values() for _, score in of_method if math.isfinite(score)]
    finite = scores if larger else [score for score in scores if score > 0]
    if not finite:
        return None
    axis = _shares(finite) if larger else _losses(finite)
    lines: list[Trace] = []
    points: list[Trace] = []
    for method in comparison.methods:
        if method.label not in trials:
            continue
        look = looks[method.label]
        lrs, losses = zip(*trials[method.label], strict=True)
        marker = {"color": look.colour, "size": 7}
        lines.append(line(method.label, look, lrs, losses, mode="lines+markers", marker=marker))
        chosen = [(lr, loss) for lr, loss in trials[method.label] if math.isclose(lr, method.lr)]
        ring = {"symbol": "circle-open", "size": 17, "color": look.colour, "width": 3}
        name = "score" if larger else "loss"
        points.append(_points(method.label, chosen, ring, f"chosen: lr %{{x:.3g}}, {name} %{{y:.3g}}"))
        lost = [(lr, axis.crosses) for lr, loss in trials[method.label] if not math.isfinite(loss)]
        cross = {"symbol": "cross", "size": 10, "color": look.colour, "width": 2.5}
        points.append(_points(method.label, lost, cross, "lr %{x:.3g}: diverged"))
    layout = style.layout(
        "learning rate (log scale)",
        metric.axis if larger else f"{metric.axis} (log scale)",
        height=400,
        xaxis=style.log_ticks(*_ends([lr for of_method in trials.values() for lr, _ in of_method])),
        yaxis=axis.settings,
    )
    efforts = sorted({len(of_method) for of_method in trials.values()})
    effort = f"{efforts[0]}" if len(efforts) == 1 else f"{efforts[0]} to {efforts[-1]}"
    caption = (
        f"{effort} learning rates were tried for each method, by the same search: five, one more beyond the best as "
        "long as it is at the edge, then one on either side of it. The one with the "
        f"{'highest' if larger else 'lowest'} {metric.heading} is ringed and was used for every seed. A ring at the "
        "end of a curve would mean that the range tried was too small."
    )
    if any(not math.isfinite(loss) for of_method in trials.values() for _, loss in of_method):
        caption += f" Crosses along the {'bottom' if larger else 'top'} are trials that diverged."
    if not larger and max(finite) > _WORST_SHOWN * min(finite):
        caption += f" Losses more than {_WORST_SHOWN:g} times the best are beyond the top."
    return Figure("tuning", "How the learning rates were chosen", caption, [Panel("", lines + points, layout)])


@dataclass(frozen=True)
class _Axis:
    settings: dict[str, Any]
    crosses: float  # where trials are marked that diverged


def _losses(values: list[float]) -> _Axis:
    """On a log scale, without the far worse ones."""
    bottom, top = math.log10(min(values)), math.log10(min(max(values), _WORST_SHOWN * min(values)))
    margin = 0.1 * max(0.3, top - bottom)
    ticks = style.log_ticks(10**bottom, 10**top) | {"range": [bottom - margin, top + margin]}
    return _Axis(ticks, 10 ** (top + margin / 2))


def _shares(values: list[float]) -> _Axis:
    """Of what is larger when better."""
    bottom, top = min(values), max(values)
    margin = 0.1 * (top - bottom) or 0.05
    return _Axis({"range": [bottom - margin, top + margin]}, bottom - margin / 2)


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _points(label: str, points: list[tuple[float, float]], marker: dict[str, Any], hover: str) -> Trace:
    x, y = (point[0] for point in points), (point[1] for point in points)
    return marks(label, x, y, "markers", marker=marker, hover=hover, legend=False)
