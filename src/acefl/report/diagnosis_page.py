"""The page of `acefl diagnose`, made from its files alone."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pandas as pd

from acefl.report import diagnosis, diagnosis_figures, page, provenance
from acefl.report.diagnosis import Diagnosis


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page of a diagnosis directory and return where it is (`DIRECTORY/report.html` by default)."""
    found = diagnosis.load(directory)
    html = page.assemble(
        title="How wrong is each method's update, and why?",
        subtitle=_subtitle(found),
        sentences=diagnosis.sentences(found),
        table=_tables(found),
        notes=_notes(found),
        legend=page.legend(found.looks) if found.methods is not None else "",
        figures=diagnosis_figures.of(found),
        provenance=_provenance(found),
    )
    return page.write_whole(html, out or Path(directory) / "report.html")


def _subtitle(found: Diagnosis) -> str:
    if found.methods is None:
        return "measured error terms"
    task = found.methods.task
    name = f"{task.get('name', 'task')}" + (f" ({task['model']})" if task.get("model") else "")
    quick = " · quick: these numbers mean little" if found.content.get("quick") else ""
    return f"{name} · {task.get('clients', '?')} clients · {found.methods.speeds}{quick}"


def _tables(found: Diagnosis) -> str:
    if not found.labels:
        return ""
    who = diagnosis.participation(found)
    second = _table(found, diagnosis.readable_participation(who)) if len(who) else ""
    return _table(found, diagnosis.readable(diagnosis.impact(found))) + second


def _table(found: Diagnosis, text: pd.DataFrame) -> str:
    head = "".join(f"<th>{escape(str(column))}</th>" for column in text.columns)
    rows = "".join(
        f'<tr><th scope="row">{page.swatch(found.looks[label])}{escape(label)}</th>'
        + "".join(f"<td>{escape(str(cell))}</td>" for cell in text.iloc[place, 1:])
        + "</tr>"
        for place, label in enumerate(text["method"])
    )
    return f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _notes(found: Diagnosis) -> str:
    notes = []
    if found.methods is not None:
        notes.append(
            "The paper's table “impact of algorithmic elements”, measured: mean squared norms over the second half of "
            "the runs. <b>noise</b> is that of one gradient, σ², over the number beside it. <b>bias</b> is ζ², the "
            "mean squared distance of clients' gradients from their mean, times the number beside it. <b>error</b>: "
            "mean squared distance of the update from the true gradient, whose squared norm is <b>gradient</b>; "
            "<b>cosine</b>: between the two. In the second table <b>clients that count</b> is 1 / sum of squared "
            "shares of influence; <b>Gini</b> and <b>correlation with speed</b> (of ranks) are those of influence, 0 "
            "when all have the same."
        )
    if found.amplification is not None:
        notes.append(
            "<b>delay × het.</b>: how many times larger the delay error is on the most heterogeneous data "
            "than on homogeneous data, at the largest spread of speeds, in the study below."
        )
    return " ".join(notes)


def _provenance(found: Diagnosis) -> str:
    took = f"{float(found.content.get('wall_seconds') or 0):.0f} s for all of it"
    facts = {"Command": f"<pre>{escape(str(found.content.get('command', '')))}</pre>", "Took": took}
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    if found.methods is None:
        return f"<dl>{rows}</dl>"
    return f"<dl>{rows}</dl><h3>The methods on this task</h3>{provenance.section(found.methods)}"
