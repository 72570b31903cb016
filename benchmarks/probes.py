"""What watching costs: error terms every 100 arrivals, and participation with staleness, on digits with 100 clients.

Each number is a run's time over what is left of it without the time spent inside the observer, taken with a stopwatch
around each of its calls: on a machine with other work two whole runs differ by more than what is measured here. Whole
runs of 2,000 arrivals with 20 evaluations, one thread; of either time the least of five runs after one that is not
counted, as other work only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from acefl import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method
from acefl.probes import ErrorTerms, Participation
from benchmarks.common import report

ARRIVALS, REPEATS = 2_000, 5
RULES: dict[str, Method] = {
    "ACE": ACE(),
    "ACED": ACED(tau=300),
    "CA2FL": CA2FL(),
    "FedBuff": FedBuff(),
    "ASGD": ASGD(),
    "DelayAdaptiveASGD": DelayAdaptiveASGD(),
}


class Timed:
    """An observer with a stopwatch around it."""

    def __init__(self, observer: Any) -> None:
        self.seconds = 0.0
        self.started, self.per_client = observer.started, getattr(observer, "per_client", dict)
        self.arrived, self.stepped, self.evaluated = (
            self._timed(method) for method in (observer.arrived, observer.stepped, observer.evaluated)
        )

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            began = time.perf_counter()
            method(*arguments)
            self.seconds += time.perf_counter() - began

        return call


def slowdown(task: tasks.TorchTask, rule: Method, observer: Callable[[], Any]) -> tuple[float, float]:
    """How many times longer a run takes with the observer, and the rest of it in microseconds per arrival."""
    inside, outside = [], []
    for _ in range(REPEATS + 1):
        timed = Timed(observer())
        began = time.perf_counter()
        stop, scenario = Stop(arrivals=ARRIVALS), Scenario(spread=30.0)
        simulate(task, rule, lr=0.05, scenario=scenario, stop=stop, evaluations=20, observers=[timed])
        inside.append(timed.seconds)
        outside.append(time.perf_counter() - began - timed.seconds)
    rest = min(outside[1:])
    return 1 + min(inside[1:]) / rest, rest / ARRIVALS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for model in ("softmax", "mlp"):
        task = tasks.digits(clients=100, model=model)
        for name, rule in RULES.items():
            watched, bare = slowdown(task, rule, Participation)
            probed, _ = slowdown(task, rule, lambda: ErrorTerms(every=100))
            rows.append(
                {
                    "task": f"digits {model}",
                    "method": name,
                    "µs per arrival, bare": bare,
                    "participation": watched,
                    "error terms": probed,
                }
            )
    watching = max(float(row["participation"]) for row in rows)
    probing = max(float(row["error terms"]) for row in rows)
    report(
        "probes",
        __doc__ or "",
        rows,
        [
            {"what": "participation, worst of all", "measured": watching, "asked": "< 1.05", "met": watching < 1.05},
            {"what": "error terms, worst of all", "measured": probing, "asked": "< 2", "met": probing < 2},
        ],
    )


if __name__ == "__main__":
    main()
