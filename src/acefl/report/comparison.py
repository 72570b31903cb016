"""The page of a comparison, or of a lone run: how it ended, how it went, and how it was made."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from acefl.core.settings import replaced_settings
from acefl.report import equal_cost, figures, headline, metrics, named, page, recorded, style, tables
from acefl.report.metrics import by_key
from acefl.report.page import PAGE, Cell, Table
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


def render(directory: Path, linked: bool = False) -> str:
    """The page of a recorded directory. Legend, rows and panels have the methods in the order of the table.

    linked: whether it has links to the pages of its runs, which only lead somewhere from the directory itself.
    """
    read = recorded.load(directory)
    table = tables.table_of(read)
    labels = list(table["method"])
    shown = dataclasses.replace(read, methods=sorted(read.methods, key=lambda method: labels.index(method.label)))
    looks = style.looks(shown.methods)
    equal = equal_cost.table(shown, looks)
    return page.render(
        "comparison",
        title=shown.title,
        subtitle=_subtitle(shown),
        sentences=headline.sentences(shown),
        tables=[page.table_of(tables.readable(table), tables.bold(table), looks), *([equal] if equal else [])],
        equal=equal is not None,
        figures=figures.of(shown),
        looks={label: looks[label] for label in labels},
        seeds=len(shown.seeds),
        why_bold=tables.why_bold(table),
        metrics=_explained(shown),
        made=made(shown),
        methods=methods_table(shown, linked),
    )


def _explained(comparison: Comparison) -> list[metrics.Metric]:
    target = comparison.target
    timed = [metrics.time_to_target(target.words(comparison.better))] if target is not None else []
    return [*timed, *metrics.columns(comparison)]


def _ended_early(comparison: Comparison) -> str:
    """Why runs ended before their budgets did; who reached a target is in the table."""
    early = [run for run in comparison.runs if "ended" in run.config]
    reached = [run for run in early if (run.summary.get("target") or {}).get("reached")]
    told = [f"{len(reached)} of {len(comparison.runs)} runs at their target"] if reached else []
    return "; ".join(told + [str(run.config["ended"]) for run in early if run not in reached])


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
        "Task": settings({name: value for name, value in comparison.task.items() if name != "client_work"}),
        "Work per upload": str(comparison.task.get("client_work") or ""),
        "Scenario": settings(_with_effect(comparison.scenario)),
        "Trace": _trace(comparison),
        "Durations": _durations(comparison),
        "Visits": _visits(comparison),
        "Clock": _CLOCKS.get(clock, clock),
        "Stopped at": settings(comparison.stop),
        "Ended early": _ended_early(comparison),
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


def _with_effect(scenario: dict[str, Any]) -> dict[str, Any]:
    """Settings that had an effect: not those that a trace, visits or durations replace, which have their own lines."""
    replaced = (*replaced_settings(scenario), "durations", "visits")
    return {name: value for name, value in scenario.items() if name not in replaced}


def _durations(comparison: Comparison) -> str:
    """What clients take, as it was given: of each where they are few."""
    given = comparison.scenario.get("durations") or {}
    own = given.items() if isinstance(given, dict) else enumerate(given)
    told = [
        f"{client}: {value:g}"
        if isinstance(value, int | float)
        else f"{client}: {len(value):,} measured, mean {sum(value) / len(value):.3g}"
        for client, value in own
    ]
    more = f", and {len(told) - _MOST_NAMED:,} more clients; they are in config.json" if len(told) > _MOST_NAMED else ""
    return ", ".join(told[:_MOST_NAMED]) + more


def _visits(comparison: Comparison) -> str:
    """When clients came, as it was given: how often, and how long it took."""
    given = comparison.scenario.get("visits") or ()
    clients = {client for client, _, _ in given}
    told = f"{len(given):,} of {len(clients):,} clients, over {given[-1][2]:.3g} units of time" if given else ""
    return f"{told}; they are in config.json" if told else ""


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
    whose = "tuned by the same search for every method"
    if given:
        whose = f"given for {', '.join(given)}; for the others tuned by the same search"
    return f"{whose}: {tried} values tried, by {by_key(comparison.objective, comparison.better).heading}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def methods_table(comparison: Comparison, linked: bool = False) -> Table:
    """Every method's settings, what the server refused and, if linked, its runs' pages."""
    rows = [[Cell(_full_name(m)), Cell(settings(m.rule)), Cell(_refused(m))] for m in comparison.methods]
    if not linked or not pages(comparison):
        return Table(["method", "settings", "arrivals refused"], rows, kind="settings")
    own = pages(comparison)
    for row, method in zip(rows, comparison.methods, strict=True):
        links = tuple((f"seed {run.seed}", own[run.directory]) for run in method.runs if run.directory in own)
        row.insert(1, Cell("–", links=links))
    return Table(["method", "pages of its runs", "settings", "arrivals refused"], rows, kind="settings")


def pages(comparison: Comparison) -> dict[Path, str]:
    """The runs that lie within the comparison's directory, and the address of each one's page from there."""
    whole = comparison.directory.resolve()
    inside = [run.directory for run in comparison.runs if run.directory.resolve().is_relative_to(whole / "runs")]
    return {own: quote((own.resolve().relative_to(whole) / PAGE).as_posix()) for own in inside}


def _full_name(method: Method) -> str:
    return method.label if method.label.startswith(method.method) else f"{method.label} ({method.method})"


def _refused(method: Method) -> str:
    total: Counter[str] = Counter()
    by_client: dict[str, Counter[str]] = {}
    names: dict[int, str] = {}
    for run in method.runs:
        names |= named.names_of(run)
        total.update(run.summary.get("refused") or {})
        for client, reasons in (run.summary.get("refused_by_client") or {}).items():
            by_client.setdefault(client, Counter()).update(reasons)
    most = sorted(by_client.items(), key=lambda entry: (-entry[1].total(), int(entry[0])))
    told = [
        f"{'unknown clients' if client == '-1' else names.get(int(client), f'client {client}')}: {_counts(reasons)}"
        for client, reasons in most[:_MOST_NAMED]
    ]
    if len(most) > _MOST_NAMED:
        told.append(f"{len(most) - _MOST_NAMED:,} more clients")
    return " · ".join([_counts(total) or "none", *told])


def _counts(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()) if count)
