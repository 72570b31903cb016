"""How old the models were that the accepted updates were computed on."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

import numpy as np

from acefl.report import style
from acefl.report.drawing import Figure, Panel, band, line, numbers, solid_first
from acefl.report.influence import by_speed
from acefl.report.recorded import Comparison, Method

_ROW = 0.86  # height of the tallest histogram, in rows


def figure(comparison: Comparison) -> Figure | None:
    """The staleness of all arrivals, and that of each client's."""
    pooled = {method.label: of_all(method) for method in comparison.methods}
    pooled = {label: counts for label, counts in pooled.items() if counts}
    if not pooled:
        return None
    caption = (
        "Staleness of an update: how many steps the server took between handing out a model and getting the update "
        "computed on it. Accepted arrivals of all seeds; height is the share of arrivals in each bin, on one scale "
        "for all methods; triangles mark medians."
    )
    panels = [_overall(comparison, pooled)]
    each = _of_each_client(comparison)
    if each is not None:
        panels.append(each)
        caption += (
            " Below: each client's own median (line) and 90th percentile (upper edge of the band), clients in groups "
            "of equal size by speed, mean over seeds."
        )
    return Figure("staleness", "Staleness of what arrives", caption, panels)


def _overall(comparison: Comparison, pooled: dict[str, Counter[int]]) -> Panel:
    """One histogram per method, one above the other over the same log axis; binned here, so the page stays small."""
    looks = style.looks(comparison.methods)
    edges = _edges(max(max(counts) for counts in pooled.values()))
    shares = {label: _shares(counts, edges) for label, counts in pooled.items()}
    tallest = max(float(share.max()) for share in shares.values())
    end = float(np.log10(1 + edges[-1]))
    traces: list[dict[str, Any]] = []
    for row, label in enumerate(reversed(pooled)):
        heights = row + shares[label] / tallest * _ROW
        median, most = quantile(pooled[label], 0.5), max(pooled[label])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(label),
                "meta": label,
                "x": numbers(np.log10(1 + np.repeat(edges, 2))),
                "y": numbers([row, *np.repeat(heights, 2), row]),
                "fill": "toself",
                "fillcolor": looks[label].faint(0.35),
                "line": {"color": looks[label].colour, "width": 1.6},
                "hoverinfo": "skip",
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": escape(label),
                "meta": label,
                "x": numbers([np.log10(1 + median), end]),
                "y": [row, row + 0.12],
                "marker": {
                    "symbol": "triangle-up",
                    "size": [12, 0],
                    "color": looks[label].colour,
                    "opacity": 1,
                    "line": {"width": 0},
                },
                "text": ["", f"median {median:,}, largest {most:,}"],
                "textposition": "middle right",
                "hovertemplate": f"median {median:,}<br>largest {most:,}<extra></extra>",
                "showlegend": False,
            }
        )
    layout = style.layout(
        "staleness (server steps since the model was handed out)",
        "",
        height=70 + 74 * len(pooled),
        xaxis=_ticks(int(edges[-1])) | {"range": [0, 1.24 * end], "zeroline": False},
        yaxis={
            "tickvals": list(range(len(pooled))),
            "ticktext": [escape(label) for label in reversed(pooled)],
            "range": [-0.3, len(pooled)],
            "ticklabelstandoff": 8,
        },
    )
    return Panel("", traces, layout)


def _of_each_client(comparison: Comparison) -> Panel | None:
    """Median and 90th percentile over clients by speed; None where they were not recorded."""
    columns = ("staleness_median", "staleness_p90")
    watched = [m for m in comparison.methods if all(set(columns) <= set(run.clients.columns) for run in m.runs)]
    if not watched:
        return None
    looks = style.looks(comparison.methods)
    bands, lines, most = [], [], 1.0
    for method in watched:
        ranks, middle = by_speed(method, columns[0])
        _, high = by_speed(method, columns[1])
        medians, highs = (np.log10(1 + values.mean(axis=0)) for values in (middle, high))
        bands.append(band(method.label, looks[method.label], ranks, medians, highs))
        lines.append(line(method.label, looks[method.label], ranks, medians, hoverinfo="skip"))
        most = max(most, float(np.nanmax(high)))
    layout = style.layout(
        "clients, fastest to slowest",
        "staleness",
        height=340,
        yaxis=_ticks(round(most)) | {"range": [0, 1.05 * float(np.log10(1 + most))]},
    )
    return Panel("of each client's updates", [*bands, *solid_first(lines)], layout)


def of_all(method: Method) -> Counter[int]:
    """How many accepted arrivals of all seeds had each staleness."""
    total: Counter[int] = Counter()
    for run in method.runs:
        total.update(run.staleness)
    return total


def _edges(most: int) -> np.ndarray:
    """Bins of one value each at first, then of growing width: equal steps on the log axis cannot split an integer."""
    edges = [0]
    while edges[-1] <= most:
        edges.append(edges[-1] + max(1, round(0.15 * (edges[-1] + 1))))
    return np.asarray(edges)


def _shares(counts: Counter[int], edges: np.ndarray) -> np.ndarray:
    """Share of arrivals per bin, per unit of the log axis, so that equal areas are equal numbers of arrivals."""
    values = np.asarray(sorted(counts))
    weights = np.asarray([counts[value] for value in values.tolist()], dtype=float)
    binned, _ = np.histogram(values, bins=edges, weights=weights)
    return np.asarray(binned / weights.sum() / np.diff(np.log10(1 + edges)))


def quantile(counts: Counter[int], q: float) -> int:
    """The least staleness that a share q of the arrivals does not exceed."""
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values])
    return values[int(np.searchsorted(reached, q * reached[-1]))]


def _ticks(most: int) -> dict[str, object]:
    marks = [0, *(digit * 10**power for power in range(len(str(most))) for digit in (1, 3))]
    shown = [mark for mark in marks if mark <= most]
    return {"tickvals": numbers(np.log10(1 + np.asarray(shown))), "ticktext": [f"{mark:,}" for mark in shown]}
