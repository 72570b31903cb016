"""Who was at work when, in a run of real clients: where a node was away, its line is broken."""

from __future__ import annotations

from typing import Any

import pandas as pd

from acefl.report import style
from acefl.report.drawing import Figure, Panel, numbers
from acefl.report.recorded import Comparison, Method, Run

_MOST_CLIENTS, _MOST_ANSWERS = 40, 4000  # what a panel can show


def figure(comparison: Comparison) -> Figure | None:
    """A line per client and a mark per answer; None where there are too many to be told apart, or no real clients.

    Nor for a replay: its arrivals are those of the run it replays, whatever the method.
    """
    if not comparison.in_real_time or "replay_of" in comparison.scenario:
        return None
    panels = [_panel(method, run) for method in comparison.methods for run in method.runs if _fits(run)]
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


def _panel(method: Method, run: Run) -> Panel:
    events = run.events()
    accepted = events["accepted"].astype(bool)
    colour = style.looks([method])[method.label].colour
    traces = [
        _work(method.label, events, colour),
        _marks(method.label, "accepted", events[accepted], {"color": colour, "size": 7}),
        _marks(method.label, "refused", events[~accepted], {"color": style.SIGNAL, "size": 10, "symbol": "x"}),
    ]
    clients = sorted(int(client) for client in run.clients["client"])
    layout = style.layout(
        "seconds since the start",
        "client",
        height=110 + 34 * len(clients),
        xaxis={"range": [0, 1.02 * float(events["time"].max())], "showgrid": True},
        yaxis={"tickvals": clients, "range": [max(clients) + 0.6, min(clients) - 0.6], "showgrid": False},
    )
    return Panel(method.label, [trace for trace in traces if trace["x"]], layout)


def _work(label: str, events: pd.DataFrame, colour: str) -> dict[str, Any]:
    """All pieces in one trace; a hole after each keeps them apart."""
    across, rows = [], []
    for client, sent, came in zip(events["client"], events.get("sent", events["time"]), events["time"], strict=True):
        across += [*numbers([sent, came]), None]
        rows += [int(client), int(client), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "at work",
        "meta": label,
        "x": across,
        "y": rows,
        "line": {"color": colour, "width": 3},
        "opacity": 0.45,
        "hoverinfo": "skip",
    }


def _marks(label: str, name: str, events: pd.DataFrame, marker: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "meta": label,
        "x": numbers(events["time"]),
        "y": [int(client) for client in events["client"]],
        "marker": marker,
        "text": [f"staleness {age}" if name == "accepted" else str(why) for age, why in _told(events)],
        "hovertemplate": "client %{y} after %{x:.1f} s: %{text}<extra></extra>",
    }


def _told(events: pd.DataFrame) -> list[tuple[int, str]]:
    ages = (events["version"] - events["trained_on"]).to_numpy(int).tolist()
    return list(zip(ages, events.get("reason", pd.Series("", index=events.index)), strict=True))
