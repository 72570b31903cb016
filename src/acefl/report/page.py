"""From plain data to one HTML file: templates write it, a script in it draws its figures in the reader's browser.

Templates escape every text, so a label from a record is shown as it is and can do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from acefl.core.errors import InvalidInput
from acefl.core.files import atomic_write
from acefl.report.drawing import Figure
from acefl.report.style import Look

PAGE = "report.html"


class Cell(NamedTuple):
    """What stands in a table: text, a list of settings, or links; what leads its column is bold."""

    text: str | list[str]
    best: bool = False
    links: tuple[tuple[str, str], ...] = ()  # words, and a path from the page


@dataclass(frozen=True)
class Table:
    """Headings and rows, the first `named` cells of which say what the row is about."""

    headings: list[str]
    rows: list[list[Cell]]
    title: str = ""
    looks: Mapping[str, Look] = field(default_factory=dict)  # a method's line stands before its name
    named: int = 1
    kind: str = "results"  # or settings: smaller, to look things up in


def table_of(text: pd.DataFrame, best: pd.DataFrame | None = None, looks: Mapping[str, Look] | None = None) -> Table:
    """A table of text as one of the page; `best` has the same shape and says what is bold."""
    marks = pd.DataFrame(False, index=text.index, columns=text.columns) if best is None else best
    cells = zip(text.to_numpy().tolist(), marks.to_numpy().tolist(), strict=True)
    rows = [[Cell(str(cell), bool(mark)) for cell, mark in zip(*row, strict=True)] for row in cells]
    return Table([str(name) for name in text.columns], rows, looks=looks or {})


def render(
    template: str,
    *,
    title: str,
    subtitle: str,
    sentences: Iterable[str],
    tables: list[Table],
    figures: list[Figure],
    looks: Mapping[str, Look] | None = None,
    **own: Any,
) -> str:
    """A page as text; the same data give the same bytes. `own` is what only this kind of page shows."""
    shared = {"title": title, "subtitle": subtitle, "sentences": list(sentences), "tables": tables, "figures": figures}
    return (
        _templates()
        .get_template(f"{template}.html.j2")
        .render(**shared, looks=looks or {}, panels=_panels(figures), **own)
    )


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("acefl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return made


def _panels(figures: list[Figure]) -> list[dict[str, Any]]:
    """What the script draws, and what it saves as CSV."""
    return [
        {
            "id": f"{figure.name}-{place}",
            "figure": figure.name,
            "heading": panel.heading,
            "title": f"{figure.title}: {panel.heading}" if panel.heading else figure.title,
            "traces": panel.traces,
            "layout": panel.layout,
            "table": panel.table,
        }
        for figure in figures
        for place, panel in enumerate(figure.panels)
    ]


def write(html: str, out: Path) -> Path:
    """Write a page whole or not at all."""
    if out.is_dir():
        raise InvalidInput(f"{out}: is a directory; give the file to write, such as {out / 'report.html'}")
    if out.exists() and out.suffix not in (".html", ".htm"):
        raise InvalidInput(f"{out}: exists and is no page; allowed: a new file, or one that ends in .html")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, html)
    except OSError as problem:
        raise InvalidInput(f"{out}: cannot be written ({problem.strerror})") from problem
    return out
