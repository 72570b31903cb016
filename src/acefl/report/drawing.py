"""What a figure is before it is drawn: plain dictionaries, which `templates/draw.js` draws as SVG.

Plain data keeps the page small, the same on every build, and easy to test. The script sets every text as text, so one
from a record cannot become markup.

A trace has a `type`: `scatter` (lines, markers, text by its `mode`), `band`, `area`, `bar` or `heatmap`. `meta` is the
method it belongs to, whose button hides it. `hover` is a template for a point (`%{x:.3g}`), or False for none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from acefl.report.style import Look

VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]

Trace = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One drawing. Its heading, and a note smaller than that, stand above it in the page.

    `table` is what is saved as CSV (see `rows`) where the traces' own coordinates are not the numbers themselves.
    """

    heading: str
    traces: list[Trace]
    layout: dict[str, Any]
    note: str = ""
    table: dict[str, Any] | None = None


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


def rows(headings: list[str], *columns: Iterable[Any]) -> dict[str, Any]:
    """A panel's numbers as a table, column by column."""
    written = [
        numbers(own) if own and all(isinstance(value, int | float | np.number) for value in own) else own
        for own in ([*column] for column in columns)
    ]
    return {"headings": headings, "rows": [[*row] for row in zip(*written, strict=True)]}


def scatter(name: str, x: Iterable[float | None], y: Iterable[float | None], mode: str = "lines", **more: Any) -> Trace:
    """Points or lines that belong to no method."""
    return {"type": "scatter", "mode": mode, "name": name, "x": numbers(x), "y": numbers(y)} | more


def marks(label: str, x: Iterable[float | None], y: Iterable[float | None], mode: str, **more: Any) -> Trace:
    """A method's points; its button in the legend hides them, by the label in `meta`."""
    return scatter(label, x, y, mode, meta=label, **more)


def line(label: str, look: Look, x: Iterable[float], y: Iterable[float], **more: Any) -> Trace:
    """A method's curve."""
    return marks(label, x, y, "lines", line={"color": look.colour, "dash": look.dash, "width": 2.4}) | more


def band(label: str, look: Look, x: Iterable[float], low: Iterable[float], high: Iterable[float]) -> Trace:
    """The area between two curves, faint behind the method's own."""
    ends = {"x": numbers(x), "low": numbers(low), "high": numbers(high)}
    return {"type": "band", "name": label, "meta": label, "color": look.colour} | ends


def area(
    name: str,
    x: Iterable[float],
    y: Iterable[float],
    colour: str,
    opacity: float = 1.0,
    outline: float = 0,
    **more: Any,
) -> Trace:
    """What lies within a closed line."""
    shape = {"type": "area", "name": name, "x": numbers(x), "y": numbers(y)}
    return shape | {"color": colour, "opacity": opacity, "outline": outline} | more


def heatmap(
    x: Iterable[Any],
    y: Iterable[Any],
    z: Iterable[Iterable[float]],
    text: list[list[str]],
    ends: tuple[float, float] | None = None,
    colors: list[str] = VIRIDIS,
    values: Iterable[Iterable[float]] | None = None,
) -> Trace:
    """A coloured table with its values written in it.

    The colours run over `ends`, or over all of z. `values` are the numbers themselves, where z is not.
    """
    heights = [numbers(row) for row in z]
    known = [value for row in heights for value in row if value is not None]
    low, high = ends if ends is not None else (min(known, default=0.0), max(known, default=1.0))
    places = {"x": [str(value) for value in x], "y": [str(value) for value in y], "z": heights, "text": text}
    scale = dict(zip(("low", "high"), numbers((low, high)), strict=True)) | {"colors": colors}
    own = heights if values is None else [numbers(row) for row in values]
    return {"type": "heatmap", "name": "", **places, **scale, "values": own}


def row_names(labels: Iterable[str]) -> dict[str, Any]:
    """An axis of methods, one above the other."""
    names = list(labels)
    return {"tickvals": list(range(len(names))), "ticktext": names}


def solid_first(lines: list[Trace]) -> list[Trace]:
    """Broken lines drawn over solid ones, so that two curves in the same place are both seen."""
    return sorted(lines, key=lambda trace: trace["line"]["dash"] != "solid")


def thin(count: int) -> np.ndarray:
    """Indices of as many of `count` points as a screen can show, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, 400)).round().astype(int))


def seeds_said(count: int) -> str:
    """How the spread over seeds is shown, in words for a caption."""
    if count < 2:
        return "One run, so no spread is known."
    return f"Line: mean over {count} seeds; band: lowest to highest seed."
