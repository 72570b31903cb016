"""One HTML file with everything in it: it opens offline, from a disk or a mail, and asks no other machine for anything.

The page's security policy forbids it to load anything, so a resource added by mistake fails in tests at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import pandas as pd

from acefl.errors import InvalidInput
from acefl.report import figures, headline, metrics, provenance, style, tables
from acefl.report.drawing import Figure, Panel
from acefl.report.recorded import Comparison


def write(comparison: Comparison, out: Path) -> Path:
    """Write a comparison's page whole or not at all."""
    return write_whole(render(comparison), out)


def write_whole(html: str, out: Path) -> Path:
    """Write a page whole or not at all."""
    if out.is_dir():
        raise InvalidInput(f"{out}: is a directory; give the file to write, such as {out / 'report.html'}")
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(html, encoding="utf-8")
        os.replace(unfinished, out)
    except OSError as problem:
        raise InvalidInput(f"{out}: cannot be written ({problem.strerror})") from problem
    return out


def render(comparison: Comparison) -> str:
    """A comparison's page as text; the same files give the same bytes."""
    table = tables.table_of(comparison)
    comparison = _in_order(comparison, list(table["method"]))
    looks = style.looks(comparison.methods)
    return assemble(
        title=comparison.title,
        subtitle=_subtitle(comparison),
        sentences=headline.sentences(comparison),
        table=_table(table, comparison),
        notes=_notes(comparison),
        legend=legend({method.label: looks[method.label] for method in comparison.methods}),
        figures=figures.of(comparison),
        provenance=provenance.section(comparison),
    )


def assemble(
    *,
    title: str,
    subtitle: str,
    sentences: Iterable[str],
    table: str,
    notes: str,
    legend: str,
    figures: list[Figure],
    provenance: str,
) -> str:
    """The page every report shares. `table`, `notes`, `legend` and `provenance` are HTML, the rest is plain text."""
    from plotly.offline import get_plotlyjs

    return Template(_part("page.html")).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        headline="".join(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        table=table,
        notes=notes,
        legend=legend,
        figures="".join(_section(figure) for figure in figures),
        provenance=provenance,
        style=_part("page.css"),
        panels=_panels(figures),
        plotly=get_plotlyjs(),
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return resources.files("acefl.report").joinpath(name).read_text(encoding="utf-8")


def _in_order(comparison: Comparison, labels: list[str]) -> Comparison:
    """Methods in the order of the table, so that legend, rows and panels agree with it."""
    return dataclasses.replace(comparison, methods=sorted(comparison.methods, key=lambda m: labels.index(m.label)))


def _subtitle(comparison: Comparison) -> str:
    task = comparison.task
    clients = task.get("clients") or comparison.runs[0].config.get("clients")
    parts = [
        str(task.get("name", "task")) + (f" ({task['model']})" if task.get("model") else ""),
        f"{clients} clients" if clients else "",
        comparison.speeds,
        _chance(comparison),
    ]
    return " · ".join(part for part in parts if part)


def _chance(comparison: Comparison) -> str:
    if comparison.in_real_time:
        return "in real time"
    return f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else f"seed {comparison.seeds[0]}"


def _table(table: pd.DataFrame, comparison: Comparison) -> str:
    text, marks, looks = tables.readable(table), tables.best(table), style.looks(comparison.methods)
    head = "".join(f"<th>{escape(str(column))}</th>" for column in text.columns)
    rows = []
    for position, label in enumerate(text["method"]):
        cells = [f'<th scope="row">{swatch(looks[label])}{escape(label)}</th>']
        for column in text.columns[1:]:
            cell = escape(str(text.at[position, column]))
            cells.append(f'<td class="best">{cell}</td>' if marks.at[position, column] else f"<td>{cell}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _notes(comparison: Comparison) -> str:
    meanings = [f"<b>{escape(m.heading)}</b>: {escape(m.meaning)}" for m in metrics.columns(comparison)]
    spread = f"Mean ± standard deviation over {len(comparison.seeds)} seeds." if len(comparison.seeds) > 1 else ""
    bold = "Bold: best mean in its column." if len(comparison.methods) > 1 else ""
    return " ".join([spread, bold, "; ".join(meanings) + "."])


def swatch(look: style.Look) -> str:
    """A short piece of the method's line, as an image drawn in place."""
    dashes = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4", "longdashdot": "11 3 2 3"}
    return (
        '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><line x1="0" y1="5" x2="30" y2="5" '
        f'stroke="{look.colour}" stroke-width="4" stroke-dasharray="{dashes.get(look.dash, "none")}"/></svg>'
    )


def legend(looks: dict[str, style.Look]) -> str:
    """A button per method that shows or hides it in all figures."""
    if len(looks) < 2:
        return ""
    chips = "".join(
        f'<button type="button" aria-pressed="true" data-method="{escape(label)}">'
        f"{swatch(look)}{escape(label)}</button>"
        for label, look in looks.items()
    )
    return f'<nav class="legend" aria-label="Methods shown in the figures">{chips}</nav>'


def _section(figure: Figure) -> str:
    panels = "".join(
        f'<div class="panel">{_heading(panel)}'
        f'<div class="plot" id="{figure.name}-{place}" role="img" '
        f'aria-label="{escape(f"{figure.title} {panel.heading}")}"></div></div>'
        for place, panel in enumerate(figure.panels)
    )
    return (
        f'<section class="figure" id="{figure.name}"><h2>{escape(figure.title)}</h2>'
        f'<p class="caption">{escape(figure.caption)}</p>'
        f'<div class="panels columns-{figure.columns}">{panels}</div></section>'
    )


def _heading(panel: Panel) -> str:
    note = f" <small>{escape(panel.note)}</small>" if panel.note else ""
    return f"<h3>{escape(panel.heading)}{note}</h3>" if panel.heading else ""


def _panels(drawn: list[Figure]) -> str:
    """What the script draws. `<` is escaped so that no label can end the element it stands in."""
    everything = [
        {
            "id": f"{figure.name}-{place}",
            "title": escape(f"{figure.title}: {panel.heading}" if panel.heading else figure.title),
            "traces": panel.traces,
            "layout": panel.layout,
        }
        for figure in drawn
        for place, panel in enumerate(figure.panels)
    ]
    return json.dumps(everything, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
