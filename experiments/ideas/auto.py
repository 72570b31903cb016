"""An idea about `Calibrated`: c chosen by itself, from what the table shows.

The memory's error is the mean change that it has not seen yet, and an arriving client's innovation u_i - h_i is a noisy
look at it. Over one round trip of n arrivals the delay adds up and the noise averages, so the c that makes their sum
smallest is n D / (n D + V), with D the squared length of the mean innovation and V what single ones scatter about it.
Both are running means over the last n arrivals; D is cleared of what V alone leaves in such a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.core.rule import Method, Rule
from acefl.core.types import Arrival, Vector
from acefl.rules.calibrated import Calibrated, CalibratedRule
from acefl.rules.settings import empty_vector
from acefl.table import Table


@dataclass(frozen=True)
class AutoCalibrated(Method):
    """`Calibrated` at every arrival, its c between ACE's share and CA²FL's 1, by the innovations so far."""

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return AutoCalibratedRule(clients, like)


class AutoCalibratedRule(CalibratedRule):
    saved = (*CalibratedRule.saved, "_mean", "_square", "_looks", "_c")

    def __init__(self, clients: int, like: Vector) -> None:
        super().__init__(Calibrated(c=1.0), clients, like, Table(clients, like))
        self._mean = empty_vector(like)  # of innovations
        self._square = 0.0  # mean of their squared lengths
        self._looks = 0

    def absorb(self, arrival: Arrival) -> bool:
        assert self.table is not None
        if arrival.client in self.table:
            self._look(torch.sub(arrival.update, self.table.row(arrival.client)))
        due = super().absorb(arrival)
        self._c = self._chosen()
        return due

    def _look(self, innovation: Vector) -> None:
        self._looks += 1
        rate = max(1.0 / self._looks, 1.0 / len(self._members))
        self._mean.lerp_(innovation, rate)
        self._square += rate * (float(innovation @ innovation) - self._square)

    def _chosen(self) -> float:
        n = len(self._members)
        window = min(self._looks, 2 * n - 1)  # as many equal weights leave as much noise in a mean as the running one
        least = len(self._in_buffer) / max(1, len(self._seen))
        if window < 2 or self._square == 0:
            return max(1.0, least)
        length = float(self._mean @ self._mean)
        scatter = max(0.0, self._square - length) * window / (window - 1)
        delay = n * max(0.0, length - scatter / window)
        return max(delay / (delay + scatter) if delay else 0.0, least)
