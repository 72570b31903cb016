"""What a figure is before it is drawn: plain dictionaries that plotly.js takes as they are.

Plain data keeps the page small (no template repeated in every figure), the same on every build, and easy to test.
plotly reads text as HTML of its own kind, so every text from a record is escaped on its way into a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from acefl.report.style import Look

POINTS = 400
"""The most points a curve keeps: more than a screen can show."""

Trace = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One drawing. Its heading, and a note smaller than that, stand above it in the page."""

    heading: str
    traces: list[Trace]
    layout: dict[str, Any]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """One section of the page: a title, panels side by side, and a caption that says how to read them."""

    name: str
    title: str
    caption: str
    panels: list[Panel]
    columns: int = 1


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """Six significant digits, and None where there is no number: JSON has neither NaN nor any use for more digits."""
    return [float(f"{value:.6g}") if value is not None and np.isfinite(value) else None for value in values]


def scatter(name: str, x: Iterable[float | None], y: Iterable[float | None], mode: str = "lines", **more: Any) -> Trace:
    """Points or lines that belong to no method."""
    return {"type": "scatter", "mode": mode, "name": escape(name), "x": numbers(x), "y": numbers(y)} | more


def marks(label: str, x: Iterable[float | None], y: Iterable[float | None], mode: str, **more: Any) -> Trace:
    """A method's points; its button in the legend hides them, by the label in `meta`."""
    return scatter(label, x, y, mode, meta=label, **more)


def line(label: str, look: Look, x: Iterable[float], y: Iterable[float], **more: Any) -> Trace:
    """A method's curve."""
    return marks(label, x, y, "lines", line={"color": look.colour, "dash": look.dash, "width": 2.4}) | more


def band(label: str, look: Look, x: Iterable[float], low: Iterable[float], high: Iterable[float]) -> Trace:
    """The area between two curves, faint behind the method's own."""
    across = [*x]
    around = area(label, [*across, *across[::-1]], [*high, *[*low][::-1]], look.faint(), meta=label)
    return around | {"hoverinfo": "skip", "showlegend": False}


def area(name: str, x: Iterable[float], y: Iterable[float], colour: str, **more: Any) -> Trace:
    """What lies within a closed line."""
    return scatter(name, x, y, fill="toself", fillcolor=colour, line={"width": 0}) | more


def heatmap(
    x: Iterable[Any], y: Iterable[Any], z: Iterable[Iterable[float]], text: list[list[str]], **more: Any
) -> Trace:
    """A coloured table with its values written in it."""
    across, up = ([escape(str(value)) for value in values] for values in (x, y))
    shown = {"text": text, "texttemplate": "%{text}", "showscale": False}
    return {"type": "heatmap", "x": across, "y": up, "z": [numbers(row) for row in z]} | shown | more


def row_names(labels: Iterable[str]) -> dict[str, Any]:
    """An axis of methods, one above the other."""
    escaped = [escape(label) for label in labels]
    return {"tickvals": list(range(len(escaped))), "ticktext": escaped, "ticklabelstandoff": 8}


def solid_first(lines: list[Trace]) -> list[Trace]:
    """Broken lines drawn over solid ones, so that two curves in the same place are both seen."""
    return sorted(lines, key=lambda trace: trace["line"]["dash"] != "solid")


def thin(count: int, most: int = POINTS) -> np.ndarray:
    """Indices of at most `most` of `count` points, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def seeds_said(count: int) -> str:
    """How the spread over seeds is shown, in words for a caption."""
    if count < 2:
        return "One run, so no spread is known."
    return f"Line: mean over {count} seeds; band: lowest to highest seed."
