"""A search by successive halving as a page: what was tried, how far it went, and what it cost."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from acefl.core.files import read_json
from acefl.report import metrics, page, provenance, style
from acefl.report.drawing import Figure, Panel, numbers

_STAGES = {1: "a quarter of a run", 2: "half a run", 4: "a whole run"}


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page for the directory of a search and return where it is (`DIRECTORY/report.html` by default)."""
    record = read_json(directory / "tuning.json")
    found, metric = record["found"], metrics.by_key(record["objective"])
    trials = sorted(record["trials"], key=lambda trial: trial["settings"]["lr"])
    settings = list(record["ranges"])
    html = page.assemble(
        title=f"Tuning {record['method']}",
        subtitle=f"{record['task'].get('name', 'a task')} · {len(trials)} trials · successive halving",
        sentences=[
            f"Best: {found['method']} with lr {found['lr']:.4g}.",
            f"The budget was {record['budget']:g} whole runs; {found['spent']:g} were spent, {found['arrivals']:,} "
            "arrivals in all, on a seed that no result is reported on.",
        ],
        table=_table(trials, settings, metric, found["lr"]),
        notes=f"{escape(metric.heading)}: where the trial ended, so numbers of different stages do not compare.",
        legend="",
        figures=[_figure(trials, name, metric) for name in settings],
        provenance=provenance.details(record, ("task", "rule", "scenario", "stop", "ranges", "budget")),
    )
    return page.write_whole(html, Path(out) if out is not None else directory / "report.html")


def _table(trials: list[dict[str, Any]], settings: list[str], metric: metrics.Metric, best: float) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in [*settings, "taken to", metric.heading, "arrivals spent"])
    rows = []
    for trial in trials:
        own = [f"{trial['settings'][name]:.4g}" for name in settings]
        score = "diverged" if trial["score"] is None else metric.write(trial["score"])
        cells = [*own, _STAGES[trial["quarters"]], score, f"{trial['arrivals']:,}"]
        mark = ' class="best"' if trial["settings"]["lr"] == best else ""
        rows.append("<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _figure(trials: list[dict[str, Any]], name: str, metric: metrics.Metric) -> Figure:
    """Each stage a colour of its own, as scores of different stages do not compare."""
    known = [trial for trial in trials if trial["score"] is not None and trial["score"] > 0]
    traces = []
    for (stage, words), colour in zip(_STAGES.items(), (style.NEUTRAL, "#56B4E9", "#0072B2"), strict=True):
        own = [trial for trial in known if trial["quarters"] == stage]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": words,
                "x": numbers(trial["settings"][name] for trial in own),
                "y": numbers(trial["score"] for trial in own),
                "marker": {"color": colour, "size": 6 + 2 * stage},
                "hovertemplate": f"{name} %{{x:.4g}}<br>{metric.axis} %{{y:.4g}}<br>{words}<extra></extra>",
            }
        )
    ends = [trial["settings"][name] for trial in known] or [1.0]
    scores = [trial["score"] for trial in known if math.isfinite(trial["score"])] or [1.0]
    layout = style.layout(
        f"{name} (log scale)",
        f"{metric.axis} (log scale)",
        xaxis=style.log_ticks(min(ends), max(ends)),
        yaxis=style.log_ticks(min(scores), max(scores)),
        showlegend=True,
    )
    caption = "One point per trial, where it ended. Those that diverged are in the table only."
    return Figure(f"tried-{name}", f"What was tried: {name}", caption, [Panel("", traces, layout)])
