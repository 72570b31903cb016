"""The page of `acefl diagnose`, made from its files alone: its figures, and what stands around them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from acefl.report import clients, comparison, diagnosis, page, style
from acefl.report.diagnosis import Diagnosis, signed, slopes
from acefl.report.drawing import Figure, Panel, Trace, area, band, heatmap, line, rows, solid_first
from acefl.report.recorded import Comparison

TERMS = {"noise": "sampling noise ‖A‖²", "bias": "participation bias ‖B‖²", "delay": "delay error ‖C‖²"}
COLOURS = {"noise": "#9aa5b1", "delay": "#4c8fc4", "bias": style.SIGNAL}  # in the order they are stacked
_SQUARED = "squared norm (log scale)"
_ARRIVALS = {"nticks": 5}
_OVER = (("whole", "whole run", "circle", "solid"), ("second_half", "second half", "circle-open", "dot"))


def render(directory: Path) -> str:
    """The page of a diagnosis directory."""
    found = diagnosis.load(directory)
    methods = found.methods
    return page.render(
        "diagnosis",
        title="How wrong is each method's update, and why?",
        subtitle=_subtitle(found),
        sentences=diagnosis.sentences(found),
        tables=_tables(found),
        figures=figures(found),
        looks=found.looks if methods is not None else {},
        amplification=found.amplification is not None,
        rate=found.rate is not None,
        cached_terms=methods is not None and any("noise_all" in run.metrics for run in methods.runs),
        made={
            "Command": str(found.content.get("command", "")),
            "Took": f"{float(found.content.get('wall_seconds') or 0):.0f} s for all of it",
        },
        methods=comparison.methods_table(methods) if methods is not None else None,
        methods_made=comparison.made(methods) if methods is not None else {},
    )


def _subtitle(found: Diagnosis) -> str:
    if found.methods is None:
        return "measured error terms"
    task = found.methods.task
    quick = " · quick: these numbers mean little" if found.content.get("quick") else ""
    return f"{comparison.task_name(task)} · {task.get('clients', '?')} clients · {found.methods.speeds}{quick}"


def _tables(found: Diagnosis) -> list[page.Table]:
    shown = [diagnosis.readable(diagnosis.impact(found))] if found.labels else []
    if found.methods is not None:
        shown.append(diagnosis.readable(diagnosis.participation(found)))
    if found.rate is not None:
        shown.append(diagnosis.readable_slopes(slopes(found)))
    return [page.table_of(text, looks=found.looks) for text in shown]


def figures(found: Diagnosis) -> list[Figure]:
    """The figures of the parts that were asked for."""
    drawn = [_heat(found), _rates(found)]
    if found.methods is not None:
        of_methods = (_stacked, _by_term, _cosines, clients.influence, clients.staleness, clients.fairness)
        drawn = [*(figure(found.methods) for figure in of_methods), *drawn]
    return [figure for figure in drawn if figure is not None]


def _curves(methods: Comparison, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A term over arrivals per method, mean over seeds."""
    curves = {}
    for method in methods.methods:
        measured = pd.concat([run.metrics[run.metrics[name].notna()] for run in method.runs if name in run.metrics])
        means = measured.groupby("arrival")[name].mean()
        curves[method.label] = means.index.to_numpy(float), means.to_numpy(float)
    return curves


def _range(values: list[np.ndarray]) -> tuple[float, float]:
    """What a log axis shows: the largest value, and five orders of magnitude below it at the most."""
    together = np.concatenate(values)
    positive = together[together > 0]
    if not len(positive):
        return 0.1, 1.0  # nobody has any
    top = float(positive.max())
    return max(float(positive.min()), top * 1e-5), top


def _stacked(methods: Comparison) -> Figure:
    curves = {name: _curves(methods, name) for name in COLOURS}
    low, high = _range([y for name in COLOURS for _, y in curves[name].values()])
    low, high = low / 2, high * 2
    up = style.log_ticks(low, high) | {"range": [math.log10(low), math.log10(high)]}
    panels = []
    for method in methods.methods:
        x = curves["noise"][method.label][0]
        under = np.full(len(x), low)
        traces = []
        for name, colour in COLOURS.items():
            over = under + np.maximum(curves[name][method.label][1], 0.0)  # an estimate of nothing may be below it
            traces.append(area(TERMS[name], [*x, *x[::-1]], [*over, *under[::-1]], colour))
            under = over
        layout = style.layout("arrivals", _SQUARED, height=300, xaxis=_ARRIVALS, yaxis=up)
        terms = [curves[name][method.label][1] for name in COLOURS]
        table = rows(["method", "arrival", *COLOURS], [method.label] * len(x), x, *terms)
        panels.append(Panel(method.label, traces, layout, note=f"lr {method.lr:.3g}", table=table))
    caption = (
        "Squared norms of the three error terms of single updates, one on top of the other, on a log scale: grey, "
        "sampling noise; blue, delay; red, participation bias. What is on top on a log scale rules: a red area as tall "
        "as the others together is many times larger. Each method at its own learning rate."
    )
    return Figure("stacked", "What an update's error is made of", caption, panels, columns=min(3, len(panels)))


def _by_term(methods: Comparison) -> Figure:
    looks, panels = style.looks(methods.methods), []
    for name, title in {**TERMS, "mse": "error of the update ‖u − ∇F‖²"}.items():
        curves = _curves(methods, name)
        low, high = _range([y for _, y in curves.values()])
        lines = [line(label, looks[label], x, np.where(y < low * 0.99, np.nan, y)) for label, (x, y) in curves.items()]
        seen = [value for one in lines for value in one["y"] if value] or [low]
        axes = {"xaxis": _ARRIVALS, "yaxis": style.log_ticks(min(seen), high)}
        layout = style.layout("arrivals", _SQUARED, height=340, together=True, **axes)
        gone = [label for label, (_, y) in curves.items() if float(y.max()) < low]
        note = f"{', '.join(gone)}: none" if gone else ""
        panels.append(Panel(title, [*_intervals(methods, name, low), *solid_first(lines)], layout, note))
    caption = (
        "The same, one term per panel. A method that is missing has none of it, to the rounding of the arithmetic. "
        "Where gradients were sampled, because the task's full ones are too dear, bands are 95 % intervals."
    )
    return Figure("terms", "The methods, term by term", caption, panels, columns=2)


def _intervals(methods: Comparison, name: str, low: float) -> list[Trace]:
    """The 95 % interval of every method's curve, where terms were estimated from samples."""
    ends = [f"{name}_low", f"{name}_high"]
    if not all(set(ends) <= set(run.metrics) for run in methods.runs):
        return []
    looks = style.looks(methods.methods)
    lower, upper = (_curves(methods, end) for end in ends)
    return [
        band(label, looks[label], x, np.maximum(y, low), np.maximum(upper[label][1], low))
        for label, (x, y) in lower.items()
    ]


def _cosines(methods: Comparison) -> Figure:
    looks, panels = style.looks(methods.methods), []
    of = {"update": "update u", "noise": "sampling noise A", "bias": "participation bias B", "delay": "delay error C"}
    for term, title in of.items():
        name = f"cos_{term}"
        lines = []
        for label, (x, y) in _curves(methods, name).items():
            real = _share(methods, label, term) > 1e-9  # the direction of what is not there is that of rounding
            lines.append(line(label, looks[label], x, y if real else np.full(len(y), np.nan)))
        up = {"range": [-1.05, 1.05], "tickvals": [-1, 0, 1]}
        layout = style.layout("arrivals", "cosine", height=260, xaxis=_ARRIVALS, yaxis=up)
        panels.append(Panel(title, solid_first(lines), layout))
    caption = (
        "Cosines with the true gradient ∇F(w): 1, the same direction; 0, at right angles; −1, against it. An update "
        "at right angles to the gradient moves the model without making it better for all. A bias or a delay error "
        "against the gradient holds the model back; one along it makes the step too long. A method without a term is "
        "not in its panel."
    )
    return Figure("cosines", "Where an update and its errors point", caption, panels, columns=2)


def _share(methods: Comparison, label: str, term: str) -> float:
    """What a term makes up of the whole error; an update always counts."""
    if term == "update":
        return 1.0
    part, whole = (_curves(methods, key)[label][1] for key in (term, "mse"))
    return float(np.abs(part).max() / max(float(whole.max()), 1e-300))


def _heat(found: Diagnosis) -> Figure | None:
    cells = found.amplification
    if cells is None:
        return None
    panels = []
    for name in ("bias", "delay"):
        low, high = _range([cells[name].to_numpy(float)])
        for label in found.labels:
            table = cells[cells["method"] == label].pivot_table(index="heterogeneity", columns="spread", values=name)
            values = table.to_numpy(float)
            trace = heatmap(
                [f"{spread:g}×" for spread in table.columns],
                [f"{heterogeneity:g}" for heterogeneity in table.index],
                np.log10(np.maximum(values, low)),
                [["none" if value < low / 100 else _short(value) for value in row] for row in values],
                (math.log10(low), math.log10(high)),
                ["#eef3f8", "#e8b06a", "#b3261e"],
                values,
            )
            flat = {"type": "category", "showgrid": False}
            layout = style.layout("spread of speeds", "heterogeneity of data", height=250, xaxis=flat, yaxis=flat)
            panels.append(Panel(f"{TERMS[name]}: {label}", [trace], layout))
    caption = (
        "Quadratics on which both are known exactly; means over the second half of each run, one colour scale per "
        "term. To the right the slowest client falls behind, upwards clients' optima lie further apart; speed goes "
        "with data. All methods move at the same pace per arrival."
    )
    return Figure("amplification", "Heterogeneity amplification", caption, panels, columns=3)


def _short(value: float) -> str:
    return f"{value:.1g}" if value < 1 else f"{float(f'{value:.2g}'):,g}"


def _rates(found: Diagnosis) -> Figure | None:
    if found.rate is None:
        return None
    looks = {"ACE": style.Look("#0072B2", "solid"), "ASGD": style.Look("#D55E00", "solid"), **found.looks}
    fitted = {(r["task"], r["method"], r["against"], r["over"]): r for r in slopes(found).to_dict("records")}
    panels = []
    for (task, against), points in cast(Any, found.rate.groupby(["task", "against"], sort=False)):
        traces, notes = [], []
        for method, of_method in points.groupby("method", sort=False):
            look = looks.get(str(method), style.Look(style.NEUTRAL, "solid"))
            for over, words, symbol, dash in _OVER:
                means = of_method.groupby(against)[over].mean()
                dots = {"color": look.colour, "size": 9, "symbol": symbol, "width": 1.5}
                drawn, name = style.Look(look.colour, dash), f"{method}, {words}"
                traces.append(line(name, drawn, means.index, means, mode="lines+markers", marker=dots))
                slope = fitted[task, method, against, over]
                value, low, high = (signed(slope[key]) for key in ("slope", "low", "high"))
                notes.append(f"{name}: {value} ({low} to {high})")
        traces.append(_reference(points, str(against)))
        both = points[["whole", "second_half"]].to_numpy(float)
        layout = style.layout(
            "number of steps T" if against == "T" else "number of clients n",
            "mean ‖∇F(w)‖² (log scale)",
            height=380,
            xaxis=style.log_ticks(float(points[against].min()), float(points[against].max())),
            yaxis=style.log_ticks(float(both.min()), float(both.max())),
        )
        panels.append(Panel(f"{task}, against {against}", traces, layout, note="slopes: " + "; ".join(notes)))
    caption = (
        "Mean over steps of the squared norm of the true gradient, with lr = c √(n/T), mean over seeds: filled, over "
        "the whole run, as in the paper's theorem; open, over its second half, which falls faster while the start is "
        "not yet forgotten, and not at all where a bias stays. Grey dashes: the predicted slope of −1/2. Slopes are "
        "fitted to all seeds, with 95 % intervals."
    )
    return Figure("rate", "The convergence claim", caption, panels, columns=2)


def _reference(points: pd.DataFrame, against: str) -> Trace:
    ends = np.asarray([points[against].min(), points[against].max()], dtype=float)
    ace = points[(points["method"] == "ACE") & (points[against] == ends[0])]["whole"]
    start = float((ace if len(ace) else points["whole"]).mean()) * 1.6
    predicted = start * (ends / ends[0]) ** diagnosis.PREDICTED
    return line("slope −1/2", style.Look(style.NEUTRAL, "dash"), ends, predicted, hover=False)
