"""Every figure of a comparison's page, in the order a reader meets them, and those about time: curves and timeline.

Curves are drawn against three budgets, for a method that is cheap in one can be dear in another: 500 steps of FedBuff
with a buffer of 10 cost ten times the uploads of ACE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from acefl.report import clients, metrics, named, style, tuning
from acefl.report.drawing import (
    Figure,
    Panel,
    Trace,
    band,
    line,
    row_names,
    rows,
    scatter,
    seeds_said,
    solid_first,
    thin,
)
from acefl.report.metrics import Metric
from acefl.report.recorded import Comparison, Method, Run

Array = npt.NDArray[np.float64]

BUDGETS = {"step": "server steps", "arrival": "arrivals", "time": "virtual time"}
_MOST_CLIENTS, _MOST_ANSWERS = 40, 4000  # what a panel of the timeline can show
_SQUEEZED = 8.0  # beyond this factor between methods, a linear axis would show the smaller ones in a corner


def of(comparison: Comparison) -> list[Figure]:
    """The figures this comparison has numbers for. A new figure is one more line here."""
    drawn = [
        clients.fairness(comparison),
        *(curve(comparison, metric) for metric in metrics.curves(comparison)),
        named.each_client(comparison),
        clients.participation(comparison),
        timeline(comparison),
        clients.influence(comparison),
        clients.staleness(comparison),
        tuning.figure(comparison),
    ]
    return [figure for figure in drawn if figure is not None]


# -- curves ---------------------------------------------------------------------------------------------------------


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
    tracks = [track(history, x, y) for history in histories]
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


def track(history: pd.DataFrame, x: str, y: str) -> tuple[Array, Array]:
    """One seed's curve, one value per x: the last one, for several evaluations can fall between two server steps."""
    if y not in history.columns:
        return np.empty(0), np.empty(0)
    both = pd.DataFrame({name: pd.to_numeric(history[name], errors="coerce") for name in (x, y)})
    kept = both.replace([np.inf, -np.inf], np.nan).dropna().drop_duplicates(x, keep="last").sort_values(x)
    return kept[x].to_numpy(float), kept[y].to_numpy(float)


def curve(comparison: Comparison, metric: Metric) -> Figure:
    """Progress of a metric against server steps, arrivals and virtual time: a panel each."""
    looks = style.looks(comparison.methods)
    curves = {
        budget: {
            method.label: found
            for method in comparison.methods
            if (found := over_seeds([run.metrics for run in method.runs], budget, metric.key))
        }
        for budget in BUDGETS
    }
    every = [one for of_budget in curves.values() for one in of_budget.values()]
    log = metric.log or (not metric.higher_is_better and _are_far_apart([float(one.mean[-1]) for one in every]))
    y_axis = _y_axis(metric, every, log)
    panels = []
    for budget, of_methods in curves.items():
        bands = [
            band(label, looks[label], one.x, one.low, one.high)
            for label, one in of_methods.items()
            if (one.high > one.low).any()
        ]
        lines = [line(label, looks[label], one.x, one.mean) for label, one in of_methods.items()]
        name = comparison.time_heading if budget == "time" else BUDGETS[budget]
        in_delays = " (in the unit of delay)" if "delay" in comparison.scenario else ""
        unit = {"arrival": " (uploads received)", "time": in_delays}
        axes = {"xaxis": _x_axis(list(of_methods.values())), "yaxis": y_axis}
        across, up = _titled(name + unit.get(budget, ""), axes["xaxis"]), _titled(metric.axis, y_axis)
        layout = style.layout(across, up, height=390, together=True, **axes)
        panels.append(Panel(f"against {name}", bands + solid_first(lines), layout))
    caption = f"{_capital(metric.meaning)}. {seeds_said(len(comparison.seeds))}"
    if not log:
        caption += " The vertical axis does not start at zero."
    return Figure(f"curve-{metric.key}", f"{_capital(metric.heading)} while training", caption, panels, columns=3)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _titled(title: str, axis: dict[str, object]) -> str:
    return f"{title}, log scale" if axis.get("type") == "log" else title


def _are_far_apart(values: list[float]) -> bool:
    """Whether numbers lie so far apart that a linear axis would squeeze the smaller ones."""
    return bool(values) and min(values) > 0 and max(values) > _SQUEEZED * min(values)


def _x_axis(curves: list[Curve]) -> dict[str, object]:
    """From zero to a little beyond the end, so that the last tick's label has room; log where curves end far apart."""
    end = max((float(one.x[-1]) for one in curves), default=0.0)
    starts = [float(one.x[one.x > 0][0]) for one in curves if (one.x > 0).any()]
    if starts and _are_far_apart([float(one.x[-1]) for one in curves]):
        low, high = min(starts), 1.03 * end
        return style.log_ticks(low, high) | {"range": [float(np.log10(low)), float(np.log10(high))]}
    return {"range": [0, 1.03 * end], "nticks": 5} if end > 0 else {}


def _y_axis(metric: Metric, curves: list[Curve], log: bool) -> dict[str, object]:
    """The same range in all three panels, set by where methods end up rather than by the first steps."""
    if not curves:
        return {}
    if log:
        lows = np.concatenate([one.low[one.low > 0] for one in curves])
        starts = np.asarray([one.high[0] for one in curves])
        if len(lows) == 0 or not (starts > 0).any():
            return {}
        bottom, top = np.log10(lows.min()), np.log10(starts.max() * 10)
        return style.log_ticks(10**bottom, 10**top) | {"range": [float(bottom - 0.2), float(top)]}
    everything = np.concatenate([one.mean for one in curves])
    bottom, top = float(np.quantile(everything, 0.1)), max(one.high.max() for one in curves)
    if not metric.higher_is_better:
        bottom, top = min(one.low.min() for one in curves), float(np.quantile(everything, 0.9))
    margin = 0.06 * (top - bottom) or 0.05
    return {"range": [float(bottom - margin), float(top + margin)]}


# -- the timeline of real clients -----------------------------------------------------------------------------------


def timeline(comparison: Comparison) -> Figure | None:
    """A line per client and a mark per answer; None where there are too many to be told apart, or no real clients.

    Nor for a replay: its arrivals are those of the run it replays, whatever the method.
    """
    if not comparison.in_real_time or "replay_of" in comparison.scenario:
        return None
    panels = [_timeline_of(method, run) for method in comparison.methods for run in method.runs if _fits(run)]
    if not panels:
        return None
    caption = (
        "Each line is one client's work, from when a model was sent to it until its answer was here: fast ones have "
        "many short pieces, slow ones few long ones. A client that was away, or whose work was lost, has a gap. Dots "
        "are accepted answers, crosses refused ones. Clients are numbered in the order they were first seen."
    )
    return Figure("timeline", "Who was at work when", caption, panels)


def _fits(run: Run) -> bool:
    return len(run.clients) <= _MOST_CLIENTS and 0 < run.total("uploads") <= _MOST_ANSWERS


def _timeline_of(method: Method, run: Run) -> Panel:
    events = run.events()
    accepted = events["accepted"].astype(bool)
    colour = style.looks([method])[method.label].colour
    traces = [
        _lines_at_work(events, colour),
        _answers("accepted", events[accepted], {"color": colour, "size": 7}),
        _answers("refused", events[~accepted], {"color": style.SIGNAL, "size": 10, "symbol": "cross"}),
    ]
    numbered, names = sorted(int(client) for client in run.clients["client"]), named.names_of(run)
    places = row_names(names.get(client, str(client)) for client in numbered) | {"tickvals": numbered}
    layout = style.layout(
        "seconds since the start",
        "client",
        height=110 + 34 * len(numbered),
        xaxis={"range": [0, 1.02 * float(events["time"].max())], "showgrid": True},
        yaxis=places | {"range": [max(numbered) + 0.6, min(numbered) - 0.6], "showgrid": False},
    )
    told = rows(
        ["method", "client", "sent", "answered", "accepted", "staleness"],
        [method.label] * len(events),
        events["client"],
        events.get("sent", events["time"]),
        events["time"],
        accepted.astype(int),
        events["version"] - events["trained_on"],
    )
    return Panel(method.label, [trace | {"meta": method.label} for trace in traces if trace["x"]], layout, table=told)


def _lines_at_work(events: pd.DataFrame, colour: str) -> Trace:
    """All pieces in one trace; a hole after each keeps them apart."""
    across: list[float | None] = []
    rows: list[float | None] = []
    for client, sent, came in zip(events["client"], events.get("sent", events["time"]), events["time"], strict=True):
        across += [sent, came, None]
        rows += [client, client, None]
    return scatter("at work", across, rows, line={"color": colour, "width": 3}, opacity=0.45, hover=False)


def _answers(name: str, events: pd.DataFrame, marker: dict[str, Any]) -> Trace:
    ages = (events["version"] - events["trained_on"]).to_numpy(int).tolist()
    reasons = events.get("reason", pd.Series("", index=events.index))
    text = [f"staleness {age}" for age in ages] if name == "accepted" else [str(why) for why in reasons]
    hover = "client %{y} after %{x:.1f} s: %{text}"
    return scatter(name, events["time"], events["client"], "markers", marker=marker, text=text, hover=hover)
