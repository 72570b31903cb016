"""The page of a search by successive halving: what was tried, how far it went, and what it cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from acefl.core.files import read_json
from acefl.core.metrics import LARGER, SMALLER, Better
from acefl.core.ranges import written
from acefl.report import comparison, metrics, page, style
from acefl.report.drawing import Figure, Panel, scatter
from acefl.report.page import Cell, Table

_STAGES = {1: "a quarter of a run", 2: "half a run", 4: "a whole run"}


def render(directory: Path) -> str:
    """The page of the directory of a search."""
    record = read_json(directory / "tuning.json")
    found, metric = record["found"], metrics.by_key(record["objective"], _better(record))
    trials = sorted(record["trials"], key=lambda trial: trial["settings"]["lr"])
    return page.render(
        "search",
        title=f"Tuning {record['method']}",
        subtitle=f"{record['task'].get('name', 'a task')} · {len(trials)} trials · successive halving",
        sentences=[
            f"Best: {found['method']} with lr {found['lr']:.4g}.",
            f"The budget was {record['budget']:g} whole runs; {found['spent']:g} were spent, {found['arrivals']:,} "
            "arrivals in all, on a seed that no result is reported on.",
        ],
        tables=[_table(trials, list(record["ranges"]), metric, found["lr"])],
        figures=[_figure(trials, name, metric) for name in record["ranges"] if _is_positive(trials, name)],
        metric=metric,
        made=comparison.facts(record, ("task", "rule", "scenario", "stop", "ranges", "budget")),
    )


def _better(record: dict[str, Any]) -> Better:
    return {record["objective"]: LARGER if record.get("larger") else SMALLER}


def _is_positive(trials: list[dict[str, Any]], name: str) -> bool:
    """Whether a setting has a place on a log scale: words and zero have none."""
    values = [trial["settings"][name] for trial in trials]
    return all(isinstance(value, int | float) and value > 0 for value in values)


def _table(trials: list[dict[str, Any]], settings: list[str], metric: metrics.Metric, best: float) -> Table:
    rows = []
    for trial in trials:
        score = "diverged" if trial["score"] is None else metric.write(trial["score"])
        own = [written(trial["settings"][name], 4) for name in settings]
        cells = [*own, _STAGES[trial["quarters"]], score, f"{trial['arrivals']:,}"]
        rows.append([Cell(cell, trial["settings"]["lr"] == best) for cell in cells])
    return Table([*settings, "taken to", metric.heading, "arrivals spent"], rows, named=0)


def _figure(trials: list[dict[str, Any]], name: str, metric: metrics.Metric) -> Figure:
    """Each stage a colour of its own, as scores of different stages do not compare."""
    log = not metric.higher_is_better  # shares such as an accuracy are even, losses are not
    known = [trial for trial in trials if trial["score"] is not None and (trial["score"] > 0 or not log)]
    traces = []
    for (stage, words), colour in zip(_STAGES.items(), (style.NEUTRAL, "#56B4E9", "#0072B2"), strict=True):
        own = [trial for trial in known if trial["quarters"] == stage]
        x, y = (trial["settings"][name] for trial in own), (trial["score"] for trial in own)
        hover = f"{name} %{{x:.4g}}\n{metric.axis} %{{y:.4g}}\n{words}"
        dots = {"color": colour, "size": 6 + 2 * stage}
        traces.append(scatter(words, x, y, "markers", marker=dots, hover=hover))
    ends = [trial["settings"][name] for trial in known] or [1.0]
    scores = [trial["score"] for trial in known if math.isfinite(trial["score"])] or [1.0]
    layout = style.layout(
        f"{name} (log scale)",
        f"{metric.axis} (log scale)" if log else metric.axis,
        xaxis=style.log_ticks(min(ends), max(ends)),
        yaxis=style.log_ticks(min(scores), max(scores)) if log else {},
        showlegend=True,
    )
    caption = "One point per trial, where it ended. Those that diverged are in the table only."
    return Figure(f"tried-{name}", f"What was tried: {name}", caption, [Panel("", traces, layout)])
