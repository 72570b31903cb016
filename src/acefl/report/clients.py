"""Who takes part and who is served: figures with the clients ordered from fast to slow."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.report import style
from acefl.report.drawing import Figure, Panel, band, line, numbers, seeds_said, solid_first
from acefl.report.recorded import Comparison, Method, Run

Array = npt.NDArray[np.float64]

_MOST_BARS = 200


def participation(comparison: Comparison) -> Figure:
    """Accepted arrivals per client; methods that got exactly the same share a panel, for one is enough to see it."""
    looks = style.looks(comparison.methods)
    alike: dict[tuple[float, ...], list[str]] = {}
    for method in comparison.methods:
        alike.setdefault(tuple(_over_seeds(method, "participation").tolist()), []).append(method.label)
    top = max(max(counts) for counts in alike) * 1.06 or 1.0
    panels = []
    for counts, labels in alike.items():
        lone = len(labels) == 1
        colour = looks[labels[0]].colour if lone else style.NEUTRAL
        heading = "All methods alike" if 1 < len(labels) == len(comparison.methods) else ", ".join(labels)
        shares = np.asarray(counts)
        traces = [_bars(labels[0] if lone else "", colour, shares), _equal_share(shares)]
        layout = style.layout(
            "clients, fastest to slowest",
            "accepted arrivals",
            height=290,
            bargap=0.15,
            xaxis={"range": [0, len(counts) + 1], "showgrid": False, "tickvals": _places(len(counts))},
            yaxis={"range": [0, top]},
        )
        panels.append(Panel(heading, traces, layout, note=_fifths(shares)))
    caption = (
        "How often each client's work reached the model, clients ordered from fastest to slowest by their mean task "
        "time (mean over seeds). Dashed: what each would have if all took part equally. What a method makes of "
        "unequal participation is seen in its results, not here."
    )
    return Figure("participation", "Who takes part", caption, panels, columns=min(3, len(panels)))


def _bars(label: str, colour: str, counts: Array) -> dict[str, Any]:
    """One bar per client; where there are more than can be told apart, one per group of neighbours."""
    groups = np.array_split(counts, min(len(counts), _MOST_BARS))
    ranks = np.cumsum([len(group) for group in groups]) - [(len(group) - 1) / 2 for group in groups]
    return {
        "type": "bar",
        "name": escape(label) or "accepted arrivals",
        "meta": label,
        "x": numbers(ranks),
        "y": numbers(group.mean() for group in groups),
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": "client %{x} by speed: %{y:.1f} arrivals<extra></extra>",
    }


def _equal_share(counts: Array) -> dict[str, Any]:
    equal = float(counts.mean())
    return {
        "type": "scatter",
        "mode": "lines+text",
        "name": "equal share",
        "text": ["", "equal share"],
        "textposition": "top left",
        "textfont": {"color": style.SIGNAL},
        "x": [0.5, len(counts) + 0.5],
        "y": numbers([equal, equal]),
        "line": {"color": style.SIGNAL, "width": 2, "dash": "dash"},
        "hovertemplate": f"equal share: {equal:.1f}<extra></extra>",
    }


def _places(count: int) -> list[int]:
    return sorted({1, *(round(count * part / 4) for part in (1, 2, 3, 4))} - {0})


def fairness(comparison: Comparison) -> Figure | None:
    """How slow clients fare against fast ones: the two fifths side by side, and the whole range of speeds."""
    panels = [panel for panel in (_two_fifths(comparison), _by_speed(comparison)) if panel is not None]
    if not panels:
        return None
    caption = f"Every client's score on {_judged_by(comparison)}. " + (
        "Left: mean of the slowest fifth (filled) and of the fastest fifth (open); small ticks are single seeds. "
        "Right: clients in groups of equal size by speed. "
        if len(panels) == 2
        else "Clients are in groups of equal size by speed. "
    )
    return Figure(
        "fairness",
        "Slow clients against fast clients",
        caption + seeds_said(len(comparison.seeds)) + _worst(comparison) + _unscored(comparison),
        panels,
        columns=len(panels),
    )


def _held_out(comparison: Comparison) -> str:
    """What scores of clients are called: those on held-out data where they were recorded."""
    held = any(comparison.measures(f"heldout_worst_{score}") for score in ("accuracy", "loss"))
    return "heldout_" if held else ""


def _judged_by(comparison: Comparison) -> str:
    held = "data it does not train on: its own test data, or the test set by its share of each label"
    return held if _held_out(comparison) else "the data it trains on"


def _worst(comparison: Comparison) -> str:
    """The client that is served worst, per method, in words."""
    held = _held_out(comparison)
    name = next((name for name in ("accuracy", "loss") if comparison.measures(f"{held}worst_{name}")), None)
    if name is None:
        return ""
    said = [f"{method.label} {np.mean(method.finals(f'{held}worst_{name}')):.3g}" for method in comparison.methods]
    return f" The {name} of the worst served client: {', '.join(said)}."


def _unscored(comparison: Comparison) -> str:
    """How many clients the means leave out."""
    column = f"{_held_out(comparison)}loss"
    known = [run.clients[column].notna() for run in comparison.runs if column in run.clients]
    most = max((int((~own).sum()) for own in known if own.any()), default=0)
    return f" Clients without a score are left out, {most} of {len(known[0])}." if most else ""


def _two_fifths(comparison: Comparison) -> Panel | None:
    held = _held_out(comparison)
    names = f"{held}slow_accuracy", f"{held}fast_accuracy"
    if len(comparison.methods) < 2 or not all(comparison.measures(name) for name in names):
        return None
    looks = style.looks(comparison.methods)
    labels = [method.label for method in comparison.methods]
    traces = []
    for row, method in enumerate(reversed(comparison.methods)):
        slow, fast = (method.finals(name) for name in names)
        colour = looks[method.label].colour
        mine = {"type": "scatter", "name": escape(method.label), "meta": method.label}
        if len(method.runs) > 1:
            traces.append(
                mine
                | {
                    "mode": "markers",
                    "x": numbers(slow + fast),
                    "y": [row] * (2 * len(slow)),
                    "marker": {"symbol": "line-ns-open", "size": 12, "color": colour, "opacity": 0.55},
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
        ends = [float(np.mean(slow)), float(np.mean(fast))]
        traces.append(
            mine
            | {
                "mode": "lines+markers+text",
                "x": numbers(ends),
                "y": [row, row],
                "line": {"color": colour, "width": 3},
                "marker": {
                    "symbol": ["circle", "circle-open"],
                    "size": 14,
                    "color": colour,
                    "line": {"width": 2.5, "color": colour},
                },
                "text": [f"<b>{ends[0]:.2f}</b>", f"{ends[1]:.2f}"],
                "textposition": ["top center", "bottom center"],
                "hovertemplate": ["slowest fifth: %{x:.3f}<extra></extra>", "fastest fifth: %{x:.3f}<extra></extra>"],
            }
        )
    layout = style.layout(
        "held-out accuracy" if held else "accuracy on training data",
        "",
        height=max(380, 60 + 62 * len(labels)),
        xaxis={"range": style.span(_shown(traces, "x"), 0.1)},
        yaxis={
            "tickvals": list(range(len(labels))),
            "ticktext": [escape(label) for label in reversed(labels)],
            "range": [-0.6, len(labels) - 0.4],
            "showgrid": False,
            "ticklabelstandoff": 8,
        },
    )
    return Panel("slowest fifth ● against fastest fifth ○", traces, layout)


def _by_speed(comparison: Comparison) -> Panel | None:
    columns = [set(run.clients.columns[run.clients.notna().any()]) for run in comparison.runs]
    held = _held_out(comparison)
    score = next((f"{held}{name}" for name in ("accuracy", "loss") if all(f"{held}{name}" in c for c in columns)), None)
    if score is None:
        return None
    looks = style.looks(comparison.methods)
    bands, lines, slowness = [], [], []
    for method in comparison.methods:
        grouped = [_groups(run, score) for run in method.runs]
        times = np.exp(np.log(np.stack([times for times, _ in grouped])).mean(axis=0))
        scores = np.stack([scores for _, scores in grouped])
        slowness += times.tolist()
        look = looks[method.label]
        if len(scores) > 1:
            bands.append(band(method.label, look, times, scores.min(axis=0), scores.max(axis=0)))
        marker = {"color": look.colour, "size": 7}
        lines.append(line(method.label, look, times, scores.mean(axis=0), mode="lines+markers", marker=marker))
    layout = style.layout(
        f"mean task time of client ({comparison.time_heading})",
        score.replace("heldout_", "held-out ") if held else f"{score} on training data",
        height=max(380, 60 + 62 * len(comparison.methods)),
        xaxis=style.log_ticks(min(slowness), max(slowness)),
        yaxis={"range": style.span(_shown(bands + lines, "y"), 0.1 if score.endswith("accuracy") else 0.0)},
        hovermode="x unified",
    )
    return Panel("fast clients on the left, slow on the right", bands + solid_first(lines), layout)


def _shown(traces: list[dict[str, Any]], axis: str) -> list[float]:
    return [value for trace in traces for value in trace[axis] if value is not None]


def _groups(run: Run, score: str) -> tuple[Array, Array]:
    """Mean task time (geometric) and mean score of ten groups of clients by speed; of fewer where clients are few."""
    times, scores = run.clients["mean_time"].to_numpy(float), run.clients[score].to_numpy(float)
    parts = np.array_split(np.arange(len(times)), 10 if len(times) >= 30 else min(len(times), 5))
    grouped_times = np.asarray([np.exp(np.log(np.maximum(times[part], 1e-12)).mean()) for part in parts])
    return grouped_times, np.asarray([_mean(scores[part]) for part in parts])


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _over_seeds(method: Method, column: str) -> Array:
    """Mean over seeds by rank of speed, for with `slow="random"` the same rank is another client in each seed."""
    per_seed = [run.clients[column].to_numpy(float) for run in method.runs]
    shortest = min(len(values) for values in per_seed)
    return np.asarray(np.stack([values[:shortest] for values in per_seed]).mean(axis=0))


def _fifths(counts: Array) -> str:
    """What the fastest and the slowest fifth contributed, in words."""
    fifth, total = max(1, len(counts) // 5), float(counts.sum()) or 1.0
    fast, slow = counts[:fifth].sum() / total, counts[-fifth:].sum() / total
    return f"fastest fifth {fast:.0%} of arrivals, slowest fifth {slow:.1%}"
