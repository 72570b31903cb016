"""A run's counts in the text format of Prometheus, written by hand: it is a dozen lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def metrics_text(state: Mapping[str, Any]) -> str:
    """What `/metrics` answers.

    Args:
        state: A snapshot of the live page.
    """
    clients = [({"client": str(c["client"]), "node": c["node"], "name": c["name"]}, c) for c in state["clients"]]

    def each(key: str) -> list[tuple[Mapping[str, str], float | None]]:
        return [(who, client[key]) for who, client in clients]

    last = state["evaluations"][-1] if state["evaluations"] else {}
    scores = [({"metric": name}, last[name]) for name in sorted(last) if name not in ("step", "arrival", "time")]
    families = [
        _family("steps_total", "counter", "Steps of the server's model.", [({}, state["steps"])]),
        _family("arrivals_total", "counter", "Updates that were accepted.", [({}, state["arrivals"])]),
        _family(
            "refused_total",
            "counter",
            "Answers that were refused, by reason.",
            [({"reason": reason}, count) for reason, count in sorted(state["refused"].items())],
        ),
        _family("seconds", "gauge", "Time of the run.", [({}, state["time"])]),
        _family("arrivals_last_minute", "gauge", "Updates of the last minute.", [({}, state["per_minute"])]),
        _family("mean_staleness", "gauge", "Of the last arrivals, in steps.", [({}, state["mean_staleness"])]),
        _family("clients", "gauge", "Clients seen so far.", [({}, state["all_clients"])]),
        _family("score", "gauge", "The last evaluation.", scores),
        _family("client_arrivals_total", "counter", "Accepted updates.", each("arrivals")),
        _family("client_lost_total", "counter", "Tasks without an answer.", each("lost")),
        _family("client_connected", "gauge", "1: it is there.", each("connected")),
        _family("client_counts", "gauge", "1: it counts in the next step.", each("active")),
        _family("client_silent_seconds", "gauge", "Since its last update.", each("seconds_ago")),
        _family("client_at_work_seconds", "gauge", "Since it was sent a model.", each("at_work")),
        _family("client_model_age", "gauge", "Steps since the model it works on.", each("model_age")),
    ]
    return "".join(families)


def _family(name: str, kind: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float | None]]) -> str:
    """All samples of one name; those of which nothing is known are left out, and a name without samples too."""
    lines = [
        f"acefl_{name}{_labels(labels)} {_number(value)}\n"
        for labels, value in samples
        if value is not None and not math.isnan(value)
    ]
    return "".join([f"# HELP acefl_{name} {meaning}\n# TYPE acefl_{name} {kind}\n", *lines]) if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    shown = [f'{name}="{_escaped(value)}"' for name, value in labels.items() if value]
    return f"{{{','.join(shown)}}}" if shown else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
