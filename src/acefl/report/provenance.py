"""How a result was made: what somebody needs to judge it, and to make it again."""

from __future__ import annotations

import json
import math
from collections import Counter
from html import escape
from typing import Any

import pandas as pd

from acefl.report.recorded import Comparison, Method
from acefl.timing import REPLACED_BY_TRACE

_MOST_NAMED = 8  # clients whose refusals are listed one by one
_CLOCKS = {
    "event": "event: every arrival is given to the method as it comes, and the model's version counts the server's "
    "steps (Algorithm 1 of the paper: one arrival, one step)",
    "tick": "tick: the server steps once per unit of virtual time and takes in whatever arrived in it",
    "wall": "wall: real clients in real time; every answer is given to the method as it comes, those that came while "
    "the server was busy together, and time is in seconds",
    "sampled": "sampled: each server step takes one client, whose staleness is drawn from the delay law",
}


def section(comparison: Comparison) -> str:
    """The page's last section, as HTML."""
    clock = str(comparison.scenario.get("clock", ""))
    facts = {
        "Command": f"<pre>{escape(comparison.command)}</pre>" if comparison.command else "",
        "Task": _settings(comparison.task),
        "Scenario": _settings(_that_matter(comparison.scenario)),
        "Trace": escape(_trace(comparison)),
        "Clock": escape(_CLOCKS.get(clock, clock)),
        "Stopped at": _settings(comparison.stop),
        "Ended early": escape("; ".join(str(run.config["ended"]) for run in comparison.runs if "ended" in run.config)),
        "Travelled": escape(_travelled(comparison)),
        "Seeds": escape(", ".join(str(seed) for seed in comparison.seeds)) if not comparison.in_real_time else "",
        "Learning rates": escape(_tuning(comparison)),
        "Spread": _spread(comparison),
        "Machine": _settings(comparison.machine),
        "Took": escape(_duration(comparison.wall_seconds)),
        "This page": "made from the recorded files alone; <code>acefl report DIR</code> makes it again",
    }
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items() if value)
    return f"<dl>{rows}</dl>{_methods(comparison.methods)}"


def details(record: dict[str, Any], names: tuple[str, ...]) -> str:
    """The same for a record that is no comparison: its command, these settings of it, and its machine."""
    facts = {"Command": f"<pre>{escape(str(record['command']))}</pre>"}
    for name in names:
        value = record[name]
        facts[name.capitalize()] = _settings(value) if isinstance(value, dict) else escape(_plain(value))
    facts["Machine"] = _settings(record["machine"])
    facts["This page"] = "made from the recorded files alone; <code>acefl report DIR</code> makes it again"
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items() if value) + "</dl>"


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
            up, down = (
                f"{_bytes(events[way].mean())} ({_bytes(events[way].sum())} in all)" for way in ("uplink", "downlink")
            )
            said.append(f"{method.label}: {up} up and {down} down per answer")
    return "; ".join(said)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"<code>{escape(f'{key}={_plain(value)}')}</code>" for key, value in _given(settings).items())


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tuning(comparison: Comparison) -> str:
    efforts = {len(method.tuning) for method in comparison.methods}
    if efforts == {0}:
        return "given, not tuned"
    if len(efforts) == 1:
        return f"tuned with the same effort for every method: {efforts.pop()} values tried, by client-average loss"
    return f"tuned by client-average loss, with unequal effort: {min(efforts)} to {max(efforts)} values tried"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _methods(methods: list[Method]) -> str:
    rows = "".join(
        f"<tr><td>{escape(_full_name(method))}</td>"
        f"<td>{_settings(method.rule) or '–'}</td><td>{escape(_refused(method))}</td></tr>"
        for method in methods
    )
    head = "<tr><th>method</th><th>settings</th><th>arrivals refused</th></tr>"
    return f'<div class="wide"><table class="settings"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


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
    named = [f"{_client(client)}: {_counts(reasons)}" for client, reasons in most[:_MOST_NAMED]]
    if len(most) > _MOST_NAMED:
        named.append(f"{len(most) - _MOST_NAMED:,} more clients")
    return " · ".join([_counts(total) or "none", *named])


def _client(name: str) -> str:
    return "unknown clients" if name == "-1" else f"client {name}"


def _counts(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()) if count)
