"""What a figure is before it is drawn: plain dictionaries that plotly.js takes as they are.

Plain data keeps the page small (no template repeated in every figure), the same on every build, and easy to test.
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


@dataclass(frozen=True)
class Panel:
    """One drawing. Its heading, and a note smaller than that, stand above it in the page."""

    heading: str
    traces: list[dict[str, Any]]
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


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six significant digits, and None where there is no number: JSON has neither NaN nor any use for more digits."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def line(label: str, look: Look, x: Iterable[float], y: Iterable[float], **more: Any) -> dict[str, Any]:
    """A method's curve."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(label),
        "meta": label,
        "x": numbers(x),
        "y": numbers(y),
        "line": {"color": look.colour, "dash": look.dash, "width": 2.4},
    } | more


def band(label: str, look: Look, x: Iterable[float], low: Iterable[float], high: Iterable[float]) -> dict[str, Any]:
    """The area between two curves, faint behind the method's own."""
    across, lower, upper = numbers(x), numbers(low), numbers(high)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(label),
        "meta": label,
        "x": across + across[::-1],
        "y": upper + lower[::-1],
        "fill": "toself",
        "fillcolor": look.faint(),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def solid_first(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
