"""Rescaled ASGD (Mahran, Maranjyan and Richtárik 2026, arXiv 2605.13434): longer steps for the slow, who come less
often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acefl.core.types import Vector
from acefl.rules.base import Method, Rule
from acefl.rules.stale_weight import FedStaleWeightRule


@dataclass(frozen=True)
class RescaledASGD(Method):
    """A step on each arriving gradient, times its client's computation time over the harmonic mean of all clients'.

    Then all clients move the model equally far over time, and a step is as long as ASGD's on average. The time that a
    client takes is measured in server steps: its mean of 1 + staleness so far.
    """

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return RescaledASGDRule(like, 1)


class RescaledASGDRule(FedStaleWeightRule):
    """What each client has sent since the last step, and how long it takes."""

    def _shares(self) -> dict[int, float]:
        speeds = {client: visits / (visits + self._staleness[client]) for client, visits in self._visits.items()}
        harmonic = len(speeds) / sum(speeds.values())
        arrived = sum(self._counts.values())
        return {client: 1.0 / (speeds[client] * harmonic * arrived) for client in self._sums}
