"""What the slowest node of a real federation got: the first thing its report says."""

from __future__ import annotations

import math

from acefl.report.recorded import Comparison, Run

SLOW = 1.5  # times the median node's seconds per task: less is not worth a sentence


def sentences(comparison: Comparison) -> list[str]:
    """One sentence for a lone run of real nodes of which one is slow, else none."""
    runs = comparison.runs
    return [said] if comparison.in_real_time and len(runs) == 1 and (said := _sentence(runs[0])) else []


def _sentence(run: Run) -> str:
    clients = run.clients
    times = clients["mean_time"]
    slowest, others = clients.iloc[-1], clients.iloc[:-1]
    if len(clients) < 2 or times.iloc[-1] < SLOW * times.median() or not slowest["participation"]:
        return ""
    said = (
        f"The slowest node, client {slowest['client']:.0f}, took {times.iloc[-1]:.3g} s per task where the median node "
        f"took {times.median():.3g} s; {slowest['participation']:.0f} of {clients['participation'].sum():.0f} updates "
        "are its own"
    )
    score = slowest.get("accuracy", math.nan)
    if math.isfinite(score):
        rest = others["accuracy"].mean()
        said += f", and the model's accuracy on its data is {score:.3f}, on the other nodes' {rest:.3f}"
    return f"{said}."
