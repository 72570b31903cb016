"""Whose data the model was made of: every client's part in the steps, which is not how often it arrived."""

from __future__ import annotations

import numpy as np

from acefl.report import style
from acefl.report.drawing import Figure, Panel, band, line, seeds_said, solid_first
from acefl.report.recorded import Comparison, Method

_GROUPS = 20


def figure(comparison: Comparison) -> Figure | None:
    """Every client's influence over its speed, as a multiple of an equal share; None where it was not recorded."""
    watched = [m for m in comparison.methods if all("influence" in run.clients.columns for run in m.runs)]
    if not watched:
        return None
    looks = style.looks(comparison.methods)
    bands, lines, ratios = [], [], []
    for method in watched:
        ranks, shares = _relative(method)
        look = looks[method.label]
        if len(shares) > 1:
            bands.append(band(method.label, look, ranks, shares.min(axis=0), shares.max(axis=0)))
        lines.append(line(method.label, look, ranks, shares.mean(axis=0)))
        ratios += shares[shares > 0].tolist()
    equal = {
        "type": "scatter",
        "mode": "lines",
        "name": "equal share",
        "x": [1, len(watched[0].runs[0].clients)],
        "y": [1, 1],
        "line": {"color": style.NEUTRAL, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
    layout = style.layout(
        "clients, fastest to slowest",
        "influence, as a multiple of an equal share",
        height=400,
        yaxis=style.log_ticks(min(ratios, default=0.1), max(ratios, default=10.0)),
    )
    caption = (
        "A client's influence is the sum of the weights that its updates had in the model's steps: under ACE a client "
        "that is seldom heard of still has its part in every step. Clients are in groups of equal size by speed. "
        f"{seeds_said(len(comparison.seeds))} " + " ".join(filter(None, (_said(method) for method in watched)))
    )
    return Figure(
        "influence", "Who makes the model", caption, [Panel("", [equal, *bands, *solid_first(lines)], layout)]
    )


def _relative(method: Method) -> tuple[np.ndarray, np.ndarray]:
    """Mean influence of groups of neighbours in speed, per seed, as a multiple of an equal share."""
    ranks, shares = by_speed(method, "influence")
    return ranks, shares * min(len(run.clients) for run in method.runs)


def by_speed(method: Method, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean rank, and per seed the mean of a column, of groups of neighbours in speed."""
    per_seed = [run.clients[column].to_numpy(float) for run in method.runs]
    count = min(len(values) for values in per_seed)
    groups = np.array_split(np.arange(count), min(count, _GROUPS))
    ranks = np.asarray([group.mean() + 1 for group in groups])
    return ranks, np.stack([[mean(values[group]) for group in groups] for values in per_seed])


def mean(values: np.ndarray) -> float:
    """Of those that are known."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _said(method: Method) -> str:
    """How even the influence is, in words."""
    names = ("influence_clients", "influence_gini", "influence_speed")
    clients, even, speed = (float(np.mean(method.finals(name))) for name in names)
    if not np.isfinite(clients):
        return ""
    return (
        f"{method.label}: as if {clients:.0f} clients counted (Gini {abs(even):.2f}, rank correlation with speed "
        f"{speed:.2f})."
    )
