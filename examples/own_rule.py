"""A method of your own in one file: ACE with clipped updates, held to the library's laws and run beside ACE.

One client whose numbers are huge (a broken sensor, a bad unit) pulls a plain mean as far as it likes. Here every update
is shortened to at most `clip` before it enters the mean.

    python examples/own_rule.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from acefl import ACE, Arrival, Method, Rule, Scenario, Stop, simulate, tasks
from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.table import Accumulator, Table
from acefl.testing import check_rule


@dataclass(frozen=True)
class ClippedACE(Method):
    """The mean of every client's latest update, each shortened to a norm of at most `clip`."""

    clip: float = 1.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.clip) and self.clip > 0, f"clip is {self.clip}; allowed: a finite number above 0")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return ClippedRule(self.clip, Table(clients, like), Accumulator(like))


class ClippedRule(Rule):
    saved = ("_table", "_total", "_seen")

    def __init__(self, clip: float, table: Table, total: Accumulator) -> None:
        self._clip = clip
        self._table = table  # every client's latest update
        self._total = total  # their sum
        self._seen: set[int] = set()

    def absorb(self, arrival: Arrival) -> bool:
        norm = float(arrival.update.norm())
        shortened = arrival.update * min(1.0, self._clip / max(norm, 1e-30))
        self._table.exchange(arrival.client, shortened, self._total, 1.0)
        self._seen.add(arrival.client)
        return True

    def direction(self) -> Vector:
        return self._total.value / len(self._seen)

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._table.grow(clients)

    def leave(self, client: int) -> bool:
        if client in self._seen:
            self._table.add_row(client, self._total, -1.0)
            self._table.forget(client)
            self._seen.remove(client)
        return False


class OneBrokenClient:
    """A task in which client 0 sends its gradients in a wrong unit, a thousand times too large."""

    def __init__(self, task: tasks.Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        scale = torch.tensor([1000.0 if client == 0 else 1.0 for client in clients])
        return self._task.updates(models, clients, keys) * scale.unsqueeze(1)


def main() -> None:
    check_rule(ClippedACE(clip=0.5))
    print("ClippedACE keeps every law")
    task = OneBrokenClient(tasks.digits(clients=20, alpha=0.5))
    for rule in (ACE(), ClippedACE(clip=0.5)):
        run = simulate(task, rule, lr=0.25, scenario=Scenario(spread=10.0), stop=Stop(arrivals=1000), evaluations=5)
        print(f"{type(rule).__name__}: test accuracy {run.final['accuracy']:.2f} with one broken client among 20")


if __name__ == "__main__":
    main()
