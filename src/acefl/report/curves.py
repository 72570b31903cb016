"""Progress of a metric against the three budgets: server steps, arrivals, virtual time.

All three are shown because a method that is cheap in one can be dear in another: 500 steps of FedBuff with a buffer of
10 cost ten times the uploads of ACE.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from acefl.report import metrics, style
from acefl.report.drawing import Figure, Panel, band, line, seeds_said, solid_first, thin
from acefl.report.metrics import Metric
from acefl.report.recorded import Comparison, Method

Array = npt.NDArray[np.float64]

BUDGETS = {"step": "server steps", "arrival": "arrivals", "time": "virtual time"}


@dataclass(frozen=True)
class Curve:
    """One metric of one method over all its seeds."""

    x: Array
    mean: Array
    low: Array
    high: Array


def over_seeds(histories: list[pd.DataFrame], x: str, y: str) -> Curve | None:
    """The seeds' curves on one common axis, as far as every seed goes; None where some seed has no numbers.

    Evaluations made at the same x in every seed are averaged as they are; others are joined by straight lines.
    """
    tracks = [_track(history, x, y) for history in histories]
    if any(len(track[0]) == 0 for track in tracks):
        return None
    start, end = max(track[0][0] for track in tracks), min(track[0][-1] for track in tracks)
    every_x = np.unique(np.concatenate([track[0] for track in tracks]))
    shared = every_x[(every_x >= start) & (every_x <= end)]
    if len(shared) == 0:
        return None
    shared = shared[thin(len(shared))]
    values = np.stack([np.interp(shared, *track) for track in tracks])
    return Curve(shared, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def figures(comparison: Comparison) -> list[Figure]:
    """One figure per metric, three panels each."""
    return [_figure(comparison, metric) for metric in metrics.curves(comparison)]


def _figure(comparison: Comparison, metric: Metric) -> Figure:
    looks = style.looks(comparison.methods)
    curves = {
        budget: {method.label: curve for method in comparison.methods if (curve := _curve(method, budget, metric))}
        for budget in BUDGETS
    }
    y_axis = _y_axis(metric, [curve for of_budget in curves.values() for curve in of_budget.values()])
    panels = []
    for budget in BUDGETS:
        x_axis = _x_axis(list(curves[budget].values()))
        bands, lines = [], []
        for label, curve in curves[budget].items():
            if (curve.high > curve.low).any():
                bands.append(band(label, looks[label], curve.x, curve.low, curve.high))
            lines.append(line(label, looks[label], curve.x, curve.mean))
        layout = style.layout(
            _axis_title(budget, comparison), metric.axis, height=390, xaxis=x_axis, yaxis=y_axis, hovermode="x unified"
        )
        panels.append(Panel(f"against {_name(budget, comparison)}", bands + solid_first(lines), layout))
    caption = f"{metric.meaning[0].upper()}{metric.meaning[1:]}. {seeds_said(len(comparison.seeds))}"
    if not metric.log:
        caption += " The vertical axis does not start at zero."
    return Figure(f"curve-{metric.key}", f"{_title(metric)} while training", caption, panels, columns=3)


def _axis_title(budget: str, comparison: Comparison) -> str:
    if budget == "arrival":
        return "arrivals (uploads received)"
    if budget == "time" and "delay" in comparison.scenario:
        return "virtual time (in the unit of delay)"
    return _name(budget, comparison)


def _name(budget: str, comparison: Comparison) -> str:
    return comparison.time_heading if budget == "time" else BUDGETS[budget]


def _title(metric: Metric) -> str:
    return metric.heading[0].upper() + metric.heading[1:]


def _curve(method: Method, budget: str, metric: Metric) -> Curve | None:
    return over_seeds([run.metrics for run in method.runs], budget, metric.key)


def _track(history: pd.DataFrame, x: str, y: str) -> tuple[Array, Array]:
    """One seed's curve, one value per x: the last one, for several evaluations can fall between two server steps."""
    if y not in history.columns:
        return np.empty(0), np.empty(0)
    both = pd.DataFrame({name: pd.to_numeric(history[name], errors="coerce") for name in (x, y)})
    kept = both.replace([np.inf, -np.inf], np.nan).dropna().drop_duplicates(x, keep="last").sort_values(x)
    return kept[x].to_numpy(float), kept[y].to_numpy(float)


def _x_axis(curves: list[Curve]) -> dict[str, object]:
    """From zero to a little beyond the end, so that the last tick's label has room."""
    end = max((float(curve.x[-1]) for curve in curves), default=0.0)
    return {"range": [0, 1.03 * end], "nticks": 5, "tickformat": ",~g" if end < 10 else ",d"} if end > 0 else {}


def _y_axis(metric: Metric, curves: list[Curve]) -> dict[str, object]:
    """The same range in all three panels, set by where methods end up rather than by the first steps."""
    if not curves:
        return {}
    if metric.log:
        lows = np.concatenate([curve.low[curve.low > 0] for curve in curves])
        starts = np.asarray([curve.high[0] for curve in curves])
        if len(lows) == 0 or not (starts > 0).any():
            return {}
        bottom, top = np.log10(lows.min()), np.log10(starts.max() * 10)
        return style.log_ticks(10**bottom, 10**top) | {"range": [float(bottom - 0.2), float(top)]}
    everything = np.concatenate([curve.mean for curve in curves])
    top = max(curve.high.max() for curve in curves)
    bottom = float(np.quantile(everything, 0.1))
    if not metric.higher_is_better:
        bottom, top = min(curve.low.min() for curve in curves), float(np.quantile(everything, 0.9))
    margin = 0.06 * (top - bottom) or 0.05
    return {"range": [float(bottom - margin), float(top + margin)]}
