"""The page of a comparison, or of a lone run: how it ended, how it went, and how it was made."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from acefl.core.settings import REPLACED_BY_TRACE
from acefl.report import figures, headline, metrics, page, recorded, style, tables
from acefl.report.metrics import by_key
from acefl.report.page import Cell, Table
from acefl.report.recorded import Comparison, Method

_MOST_NAMED = 8  # clients whose refusals are listed one by one
_CLOCKS = {
    "event": "event: every arrival is given to the method as it comes, and the model's version counts the server's "
    "steps (Algorithm 1 of the paper: one arrival, one step)",
    "tick": "tick: the server steps once per unit of virtual time and takes in whatever arrived in it",
    "wall": "wall: real clients in real time; every answer is given to the method as it comes, those that came while "
    "the server was busy together, and time is in seconds",
    "sampled": "sampled: each server step takes one client, whose staleness is drawn from the delay law",
}


def render(directory: Path) -> str:
    """The page of a recorded directory. Legend, rows and panels have the methods in the order of the table."""
    read = recorded.load(directory)
    table = tables.table_of(read)
    labels = list(table["method"])
    shown = dataclasses.replace(read, methods=sorted(read.methods, key=lambda method: labels.index(method.label)))
    looks = style.looks(shown.methods)
    return page.render(
        "comparison",
        title=shown.title,
        subtitle=_subtitle(shown),
        sentences=headline.sentences(shown),
        tables=[page.table_of(tables.readable(table), tables.bold(table), looks)],
        figures=figures.of(shown),
        looks={label: looks[label] for label in labels},
        seeds=len(shown.seeds),
        why_bold=tables.why_bold(table),
        metrics=metrics.columns(shown),
        made=made(shown),
        methods=methods_table(shown),
    )


def _subtitle(comparison: Comparison) -> str:
    task = comparison.task
    clients = task.get("clients") or comparison.runs[0].config.get("clients")
    chance = f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else f"seed {comparison.seeds[0]}"
    parts = [
        task_name(task),
        f"{clients} clients" if clients else "",
        comparison.speeds,
        "in real time" if comparison.in_real_time else chance,
    ]
    return " · ".join(part for part in parts if part)


def task_name(task: dict[str, Any]) -> str:
    return str(task.get("name", "task")) + (f" ({task['model']})" if task.get("model") else "")


def made(comparison: Comparison) -> dict[str, str | list[str]]:
    """How a comparison was made: what somebody needs to judge it, and to make it again."""
    clock = str(comparison.scenario.get("clock", ""))
    return {
        "Command": comparison.command,
        "Task": settings(comparison.task),
        "Scenario": settings(_that_matter(comparison.scenario)),
        "Trace": _trace(comparison),
        "Clock": _CLOCKS.get(clock, clock),
        "Stopped at": settings(comparison.stop),
        "Ended early": "; ".join(str(run.config["ended"]) for run in comparison.runs if "ended" in run.config),
        "Travelled": _travelled(comparison),
        "Seeds": "" if comparison.in_real_time else ", ".join(map(str, comparison.seeds)),
        "Learning rates": _tuning(comparison),
        "Spread": _spread(comparison),
        "Machine": settings(comparison.machine),
        "Took": _duration(comparison.wall_seconds),
    }


def facts(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, str | list[str]]:
    """The same for a record that is no comparison: its command, these settings of it, and its machine."""
    values = {name.capitalize(): record[name] for name in (*names, "machine")}
    told = {name: settings(value) if isinstance(value, dict) else _plain(value) for name, value in values.items()}
    return {"Command": str(record["command"]), **told}


def settings(given: dict[str, Any]) -> list[str]:
    """Settings as one would type them; those left to chance or default are left out."""
    return [f"{key}={_plain(value)}" for key, value in given.items() if value is not None]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _spread(comparison: Comparison) -> str:
    if len(comparison.seeds) > 1:
        return "± is the sample standard deviation over seeds; bands in figures are the lowest and highest seed."
    once = "run" if comparison.in_real_time else "seed"
    return f"One {once}: nothing here says how much another {once} would differ."


def _that_matter(scenario: dict[str, Any]) -> dict[str, Any]:
    """Beside a trace, which gives every task's duration, what would else make them is no setting of the run."""
    replaced = REPLACED_BY_TRACE if scenario.get("trace") else ()
    return {name: value for name, value in scenario.items() if name not in replaced}


def _trace(comparison: Comparison) -> str:
    """What a trace held, from the content in the record."""
    durations = comparison.runs[0].config.get("trace")
    if not durations:
        return ""
    every = [duration for own in durations for duration in own]
    means = [sum(own) / len(own) for own in durations]
    return (
        f"{len(every):,} durations of {len(durations):,} clients, {min(every):.3g} to {max(every):.3g}; mean of the "
        f"fastest client {min(means):.3g}, of the slowest {max(means):.3g}. They are in config.json, as trace."
    )


def _travelled(comparison: Comparison) -> str:
    """Bytes per answer, refused ones too, where clients were real."""
    if not comparison.in_real_time:
        return ""
    said = []
    for method in comparison.methods:
        events = pd.concat([run.events() for run in method.runs])
        if len(events) and {"uplink", "downlink"} <= set(events.columns):
            ways = (events[way] for way in ("uplink", "downlink"))
            up, down = (f"{_bytes(way.mean())} ({_bytes(way.sum())} in all)" for way in ways)
            said.append(f"{method.label}: {up} up and {down} down per answer")
    return "; ".join(said)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _tuning(comparison: Comparison) -> str:
    efforts = sorted({len(method.tuning) for method in comparison.methods})
    if efforts == [0]:
        return "given, not tuned"
    given = [method.label for method in comparison.methods if not method.tuning]
    efforts = [effort for effort in efforts if effort]
    tried = f"{efforts[0]}" if len(efforts) == 1 else f"{efforts[0]} to {efforts[-1]}"
    whose = (
        f"given for {', '.join(given)}; for the others tuned by the same search"
        if given
        else ("tuned by the same search for every method")
    )
    return f"{whose}: {tried} values tried, by {by_key(comparison.objective).heading}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def methods_table(comparison: Comparison) -> Table:
    """Every method's settings, and what the server refused."""
    rows = [[Cell(_full_name(m)), Cell(settings(m.rule)), Cell(_refused(m))] for m in comparison.methods]
    return Table(["method", "settings", "arrivals refused"], rows, kind="settings")


def _full_name(method: Method) -> str:
    return method.label if method.label.startswith(method.method) else f"{method.label} ({method.method})"


def _refused(method: Method) -> str:
    total: Counter[str] = Counter()
    by_client: dict[str, Counter[str]] = {}
    for run in method.runs:
        total.update(run.summary.get("refused") or {})
        for client, reasons in (run.summary.get("refused_by_client") or {}).items():
            by_client.setdefault(client, Counter()).update(reasons)
    most = sorted(by_client.items(), key=lambda entry: (-entry[1].total(), int(entry[0])))
    named = [
        f"{'unknown clients' if client == '-1' else f'client {client}'}: {_counts(reasons)}"
        for client, reasons in most[:_MOST_NAMED]
    ]
    if len(most) > _MOST_NAMED:
        named.append(f"{len(most) - _MOST_NAMED:,} more clients")
    return " · ".join([_counts(total) or "none", *named])


def _counts(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()) if count)
