"""Figures about clients, from fast to slow: who takes part, who is served, who makes the model, how stale it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.report import named, style
from acefl.report.drawing import (
    Figure,
    Panel,
    Trace,
    area,
    band,
    line,
    marks,
    numbers,
    row_names,
    rows,
    scatter,
    seeds_said,
    solid_first,
)
from acefl.report.recorded import Comparison, Method, Run

Array = npt.NDArray[np.float64]

_BY_SPEED = "clients, fastest to slowest"
_MOST_BARS = 200
_GROUPS = 20  # of clients by speed, along an axis
_ROW = 0.86  # height of the tallest histogram, in rows


# -- who takes part -------------------------------------------------------------------------------------------------


def participation(comparison: Comparison) -> Figure:
    """Accepted arrivals per client; methods that got exactly the same share a panel, for one is enough to see it."""
    looks = style.looks(comparison.methods)
    alike: dict[tuple[float, ...], list[str]] = {}
    for method in comparison.methods:
        counts = _by_rank(method, "participation").mean(axis=0)
        alike.setdefault(tuple(counts.tolist()), []).append(method.label)
    top = max(max(counts) for counts in alike) * 1.06 or 1.0
    panels = []
    names = named.along_speed(comparison)
    for counts, labels in alike.items():
        lone = labels[0] if len(labels) == 1 else ""
        heading = "All methods alike" if 1 < len(labels) == len(comparison.methods) else ", ".join(labels)
        shares = np.asarray(counts)
        places = sorted({1, *(round(len(counts) * part / 4) for part in (1, 2, 3, 4))} - {0})
        layout = style.layout(
            _BY_SPEED,
            "accepted arrivals",
            height=290,
            xaxis={"range": [0, len(counts) + 1], "showgrid": False, "tickvals": places} | names,
            yaxis={"range": [0, top]},
        )
        traces = [_bars(lone, looks[lone].colour if lone else style.NEUTRAL, shares), _equal_share(shares)]
        panels.append(Panel(heading, traces, layout, note=_fifths(shares)))
    caption = (
        "How often each client's work reached the model, clients ordered from fastest to slowest by their mean task "
        "time (mean over seeds). Dashed: what each would have if all took part equally. What a method makes of "
        "unequal participation is seen in its results, not here."
    )
    return Figure("participation", "Who takes part", caption, panels, columns=min(3, len(panels)))


def _bars(label: str, colour: str, counts: Array) -> Trace:
    """One bar per client; where there are more than can be told apart, one per group of neighbours."""
    groups = np.array_split(counts, min(len(counts), _MOST_BARS))
    ranks = np.cumsum([len(group) for group in groups]) - [(len(group) - 1) / 2 for group in groups]
    return {
        "type": "bar",
        "name": label or "accepted arrivals",
        "meta": label,
        "x": numbers(ranks),
        "y": numbers(group.mean() for group in groups),
        "color": colour,
        "hover": "client %{x} by speed: %{y:.1f} arrivals",
    }


def _equal_share(counts: Array) -> Trace:
    equal = float(counts.mean())
    return scatter(
        "equal share",
        [0.5, len(counts) + 0.5],
        [equal, equal],
        "lines+text",
        text=["", "equal share"],
        textposition="top left",
        line={"color": style.SIGNAL, "width": 2, "dash": "dash"},
        hover=f"equal share: {equal:.1f}",
    )


def _by_rank(method: Method, column: str) -> Array:
    """Seeds by ranks of speed: with `slow="random"` the same rank is another client in each seed."""
    per_seed = [run.clients[column].to_numpy(float) for run in method.runs]
    shortest = min(len(values) for values in per_seed)
    return np.stack([values[:shortest] for values in per_seed])


def _fifths(counts: Array) -> str:
    """What the fastest and the slowest fifth contributed, in words."""
    fifth, total = max(1, len(counts) // 5), float(counts.sum()) or 1.0
    fast, slow = counts[:fifth].sum() / total, counts[-fifth:].sum() / total
    return f"fastest fifth {fast:.0%} of arrivals, slowest fifth {slow:.1%}"


# -- who is served --------------------------------------------------------------------------------------------------


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
    caption += seeds_said(len(comparison.seeds)) + _worst(comparison) + _unscored(comparison)
    return Figure("fairness", "Slow clients against fast clients", caption, panels, columns=len(panels))


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
    said = [f"{method.label} {method.mean(f'{held}worst_{name}'):.3g}" for method in comparison.methods]
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
    traces = []
    for row, method in enumerate(reversed(comparison.methods)):
        slow, fast = (method.finals(name) for name in names)
        colour = looks[method.label].colour
        if len(method.runs) > 1:
            ticks = {"symbol": "bar", "size": 12, "color": colour, "opacity": 0.55}
            every = marks(method.label, slow + fast, [row] * (2 * len(slow)), "markers", marker=ticks)
            traces.append(every | {"hover": False, "legend": False})
        ends = [method.mean(name) for name in names]
        dots = {"symbol": ["circle", "circle-open"], "size": 14, "color": colour}
        traces.append(
            marks(
                method.label,
                ends,
                [row, row],
                "lines+markers+text",
                line={"color": colour, "width": 3},
                marker=dots | {"width": 2.5},
                text=[f"{ends[0]:.2f}", f"{ends[1]:.2f}"],
                textposition=["top center", "bottom center"],
                clipped=False,
                hover=["slowest fifth: %{x:.3f}", "fastest fifth: %{x:.3f}"],
            )
        )
    names_up = row_names(method.label for method in reversed(comparison.methods))
    layout = style.layout(
        "held-out accuracy" if held else "accuracy on training data",
        "",
        height=_height(comparison),
        xaxis={"range": style.span(_shown(traces, "x"), 0.1)},
        yaxis=names_up | {"range": [-0.6, len(comparison.methods) - 0.4], "showgrid": False},
    )
    runs = [(method.label, run) for method in comparison.methods for run in method.runs]
    told = rows(
        ["method", "seed", *names],
        [label for label, _ in runs],
        [run.seed for _, run in runs],
        *([run.final(name) for _, run in runs] for name in names),
    )
    return Panel("slowest fifth ● against fastest fifth ○", traces, layout, table=told)


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
        dots = {"color": look.colour, "size": 7}
        lines.append(line(method.label, look, times, scores.mean(axis=0), mode="lines+markers", marker=dots))
    layout = style.layout(
        f"mean task time of client ({comparison.time_heading})",
        named.score_words(score),
        height=_height(comparison),
        xaxis=style.log_ticks(min(slowness), max(slowness)),
        yaxis={"range": style.span(_shown(bands + lines, "y"), 0.1 if score.endswith("accuracy") else 0.0)},
        together=True,
    )
    return Panel("fast clients on the left, slow on the right", bands + solid_first(lines), layout)


def _height(comparison: Comparison) -> int:
    return max(380, 60 + 62 * len(comparison.methods))


def _shown(traces: list[Trace], axis: str) -> list[float]:
    """Every coordinate along an axis; a band has two along y."""
    columns = [trace[name] for trace in traces for name in ((axis,) if axis in trace else ("low", "high"))]
    return [value for column in columns for value in column if value is not None]


def _groups(run: Run, score: str) -> tuple[Array, Array]:
    """Mean task time (geometric) and mean score of ten groups of clients by speed; of fewer where clients are few."""
    times, scores = run.clients["mean_time"].to_numpy(float), run.clients[score].to_numpy(float)
    parts = np.array_split(np.arange(len(times)), 10 if len(times) >= 30 else min(len(times), 5))
    grouped_times = np.asarray([np.exp(np.log(np.maximum(times[part], 1e-12)).mean()) for part in parts])
    return grouped_times, np.asarray([_mean(scores[part]) for part in parts])


def _mean(values: Array) -> float:
    """Of those that are known."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


# -- who makes the model --------------------------------------------------------------------------------------------


def influence(comparison: Comparison) -> Figure | None:
    """Every client's influence over its speed, as a multiple of an equal share; None where it was not recorded."""
    watched = _watched(comparison, {"influence"})
    if not watched:
        return None
    looks = style.looks(comparison.methods)
    bands, lines, ratios = [], [], []
    for method in watched:
        ranks, shares = _along_speed(method, "influence")
        shares *= min(len(run.clients) for run in method.runs)
        look = looks[method.label]
        if len(shares) > 1:
            bands.append(band(method.label, look, ranks, shares.min(axis=0), shares.max(axis=0)))
        lines.append(line(method.label, look, ranks, shares.mean(axis=0)))
        ratios += shares[shares > 0].tolist()
    dots = {"color": style.NEUTRAL, "width": 1.5, "dash": "dot"}
    equal = scatter("equal share", [1, len(watched[0].runs[0].clients)], [1, 1], line=dots, hover=False)
    layout = style.layout(
        _BY_SPEED,
        "influence, as a multiple of an equal share",
        height=400,
        xaxis=named.along_speed(comparison),
        yaxis=style.log_ticks(min(ratios, default=0.1), max(ratios, default=10.0)),
    )
    caption = (
        "A client's influence is the sum of the weights that its updates had in the model's steps: under ACE a client "
        "that seldom arrives still has its part in every step. Clients are in groups of equal size by speed. "
        f"{seeds_said(len(comparison.seeds))} " + " ".join(filter(None, map(_evenness, watched)))
    )
    panel = Panel("", [equal, *bands, *solid_first(lines)], layout)
    return Figure("influence", "Who makes the model", caption, [panel])


def _watched(comparison: Comparison, columns: set[str]) -> list[Method]:
    return [m for m in comparison.methods if all(columns <= set(run.clients.columns) for run in m.runs)]


def _along_speed(method: Method, column: str) -> tuple[Array, Array]:
    """Mean rank, and per seed the mean of a column, of groups of neighbours in speed."""
    values = _by_rank(method, column)
    count = values.shape[1]
    groups = np.array_split(np.arange(count), min(count, _GROUPS))
    ranks = np.asarray([group.mean() + 1 for group in groups])
    return ranks, np.stack([[_mean(own[group]) for group in groups] for own in values])


def _evenness(method: Method) -> str:
    """How even the influence is, in words."""
    names = ("influence_clients", "influence_gini", "influence_speed")
    clients, even, speed = (method.mean(name) for name in names)
    if not np.isfinite(clients):
        return ""
    counted = f"as if {clients:.0f} clients counted"
    return f"{method.label}: {counted} (Gini {abs(even):.2f}, rank correlation with speed {speed:.2f})."


# -- how stale it is ------------------------------------------------------------------------------------------------


def staleness(comparison: Comparison) -> Figure | None:
    """How old the models were that accepted updates were computed on: of all arrivals, and of each client's."""
    pooled = {method.label: staleness_counts(method) for method in comparison.methods}
    pooled = {label: counts for label, counts in pooled.items() if counts}
    if not pooled:
        return None
    caption = (
        "Staleness of an update: how many steps the server took between handing out a model and getting the update "
        "computed on it. Accepted arrivals of all seeds; height is the share of arrivals in each bin, on one scale "
        "for all methods; triangles mark medians."
    )
    panels = [_staleness_of_all(comparison, pooled)]
    each = _staleness_of_each(comparison)
    if each is not None:
        panels.append(each)
        caption += (
            " Below: each client's own median (line) and 90th percentile (upper edge of the band), clients in groups "
            "of equal size by speed, mean over seeds."
        )
    return Figure("staleness", "Staleness of what arrives", caption, panels)


def _staleness_of_all(comparison: Comparison, pooled: dict[str, Counter[int]]) -> Panel:
    """One histogram per method, one above the other over the same log axis; binned here, so the page stays small."""
    looks = style.looks(comparison.methods)
    edges = _edges(max(max(counts) for counts in pooled.values()))
    shares = {label: _shares(counts, edges) for label, counts in pooled.items()}
    tallest = max(float(share.max()) for share in shares.values())
    right = 1.24 * float(np.log10(1 + edges[-1]))
    traces = []
    for row, label in enumerate(reversed(pooled)):
        heights, look = row + shares[label] / tallest * _ROW, looks[label]
        median, most = quantile(pooled[label], 0.5), max(pooled[label])
        outline = np.log10(1 + np.repeat(edges, 2)), [row, *np.repeat(heights, 2), row]
        traces.append(area(label, *outline, look.colour, 0.35, outline=1.6, meta=label))
        triangle = {"symbol": "triangle", "size": [12, 0], "color": look.colour}
        traces.append(
            marks(
                label,
                [np.log10(1 + median), 0.995 * right],  # beyond the axis nothing is drawn
                [row, row + 0.4],
                "markers+text",
                marker=triangle,
                text=["", f"median {median:,}\nlargest {most:,}"],
                textposition="middle left",
                clipped=False,
                hover=f"median {median:,}\nlargest {most:,}",
                legend=False,
            )
        )
    layout = style.layout(
        "staleness (server steps since the model was handed out)",
        "",
        height=70 + 74 * len(pooled),
        xaxis=_ticks(int(edges[-1])) | {"range": [0, right]},
        yaxis=row_names(reversed(pooled)) | {"range": [-0.3, len(pooled)]},
    )
    told = [(label, age, pooled[label][age]) for label in pooled for age in sorted(pooled[label])]
    headings = ["method", "staleness", "arrivals accepted"]
    return Panel("", traces, layout, table=rows(headings, *zip(*told, strict=True)))


def _staleness_of_each(comparison: Comparison) -> Panel | None:
    """Median and 90th percentile over clients by speed; None where they were not recorded."""
    watched = _watched(comparison, {"staleness_median", "staleness_p90"})
    if not watched:
        return None
    looks = style.looks(comparison.methods)
    bands, lines, most = [], [], 1.0
    told: list[tuple[str, float, float, float]] = []
    for method in watched:
        ranks, middle = _along_speed(method, "staleness_median")
        _, high = _along_speed(method, "staleness_p90")
        medians, highs = (np.log10(1 + values.mean(axis=0)) for values in (middle, high))
        bands.append(band(method.label, looks[method.label], ranks, medians, highs))
        lines.append(line(method.label, looks[method.label], ranks, medians, hover=False))
        told += zip([method.label] * len(ranks), ranks, middle.mean(axis=0), high.mean(axis=0), strict=True)
        most = max(most, float(np.nanmax(high)))
    ages = _ticks(round(most)) | {"range": [0, 1.05 * float(np.log10(1 + most))]}
    layout = style.layout(_BY_SPEED, "staleness", height=340, xaxis=named.along_speed(comparison), yaxis=ages)
    table = rows(["method", "rank by speed", "median", "90th percentile"], *zip(*told, strict=True))
    return Panel("of each client's updates", [*bands, *solid_first(lines)], layout, table=table)


def staleness_counts(method: Method) -> Counter[int]:
    """How many accepted arrivals of all seeds had each staleness."""
    total: Counter[int] = Counter()
    for run in method.runs:
        total.update(run.staleness)
    return total


def quantile(counts: Counter[int], q: float) -> int:
    """The least staleness that a share q of the arrivals does not exceed."""
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values])
    return values[int(np.searchsorted(reached, q * reached[-1]))]


def _edges(most: int) -> npt.NDArray[np.int64]:
    """Bins of one value each at first, then of growing width: equal steps on the log axis cannot split an integer."""
    edges = [0]
    while edges[-1] <= most:
        edges.append(edges[-1] + max(1, round(0.15 * (edges[-1] + 1))))
    return np.asarray(edges)


def _shares(counts: Counter[int], edges: npt.NDArray[np.int64]) -> Array:
    """Share of arrivals per bin, per unit of the log axis, so that equal areas are equal numbers of arrivals."""
    values = np.asarray(sorted(counts))
    weights = np.asarray([counts[value] for value in values.tolist()], dtype=float)
    binned, _ = np.histogram(values, bins=edges, weights=weights)
    return np.asarray(binned / weights.sum() / np.diff(np.log10(1 + edges)))


def _ticks(most: int) -> dict[str, Any]:
    powers = [0, *(digit * 10**power for power in range(len(str(most))) for digit in (1, 3))]
    shown = [mark for mark in powers if mark <= most]
    return {"tickvals": numbers(np.log10(1 + np.asarray(shown))), "ticktext": [f"{mark:,}" for mark in shown]}
