"""Malenia SGD (Tyurin and Richtárik, NeurIPS 2023, arXiv 2305.12387): collect gradients of the current model from
everybody, then step once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.errors import require, require_number
from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Members, Method, Rule
from acefl.rules.client_means import ClientMeans

_NEARLY = 1.0 - 1e-12  # a harmonic mean of equal counts may be rounded below them


@dataclass(frozen=True)
class MaleniaSGD(Method):
    """A step on the mean over clients of their mean gradients at the current model, once enough are in.

    Enough is when the harmonic mean of the clients' numbers of gradients reaches `batch`; with `batch=1`, when
    everybody has sent one. What was computed on an older model is left out.

    Args:
        batch: The harmonic mean that makes a step due.
        home: Where rows are: `memory`, `device` or the path of a file.
    """

    batch: float = 1.0  # the paper's S / n
    home: str | os.PathLike[str] = "memory"

    arrivals_per_step = None  # now more, now fewer

    def __post_init__(self) -> None:
        require_number("batch", self.batch, lambda batch: batch >= 1, "a finite number of at least 1")
        require(bool(str(self.home)), "home is empty; allowed: 'memory', 'device' or a path")

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"batch": Range(1.0, 8.0, least=1.0)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return MaleniaSGDRule(clients, ClientMeans(clients, like, self.home), self.batch)

    @property
    def tasks_per_step(self) -> float:
        return self.batch


class MaleniaSGDRule(Rule):
    saved = ("_members", "_means")

    def __init__(self, clients: int, means: ClientMeans, batch: float) -> None:
        self._members = Members([1.0] * clients)
        self._means = means
        self._batch = batch

    def absorb(self, arrival: Arrival) -> bool:
        self._members.absent.discard(arrival.client)
        if arrival.staleness > 0:
            return False
        self._means.add(arrival.client, arrival.update)
        return self._is_enough()

    def _is_enough(self) -> bool:
        """Of those who are there: the few gradients of one who left do not hold up the step."""
        absent = self._members.absent
        counts = [count for client, count in self._means.counts.items() if client not in absent]
        if len(counts) + len(absent) < len(self._members):
            return False
        return len(counts) / sum(1.0 / count for count in counts) >= self._batch * _NEARLY

    def direction(self) -> Vector:
        return self._means.mean()

    def clear(self) -> None:
        self._means.clear()

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._members.join(clients)
        self._means.grow(clients)

    def leave(self, client: int) -> bool:
        """What it has sent for this step counts."""
        return self.lost(client)

    def lost(self, client: int) -> bool:
        self._members.absent.add(client)
        return False
