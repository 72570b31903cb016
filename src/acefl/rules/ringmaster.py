"""Ringmaster ASGD (Maranjyan, Tyurin and Richtárik, ICML 2025, arXiv 2501.16168): asynchronous SGD that ignores what is
too old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Method, Rule
from acefl.rules.fedbuff import FedBuffRule
from acefl.rules.settings import check_count


@dataclass(frozen=True)
class RingmasterASGD(Method):
    """A step on each arriving gradient whose staleness is below `threshold`; an older one is left out, and its client
    gets the current model.

    `threshold=None` takes the number of clients, the concurrency when all are busy. It is the algorithm without
    calculation stops: nobody's work is broken off, what comes too late is not used.
    """

    threshold: int | None = None  # the paper's R

    arrivals_per_step = None  # now more, now fewer

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_count("threshold", self.threshold)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"threshold": Range(max(1.0, clients / 8), 8.0 * clients, whole=True)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return RingmasterASGDRule(like, self.threshold or clients)


class RingmasterASGDRule(FedBuffRule):
    """Vanilla ASGD for what is fresh enough, deaf to the rest."""

    def __init__(self, like: Vector, threshold: int) -> None:
        super().__init__(like, 1, lambda staleness: 1.0)
        self._threshold = threshold

    def absorb(self, arrival: Arrival) -> bool:
        return arrival.staleness < self._threshold and super().absorb(arrival)
