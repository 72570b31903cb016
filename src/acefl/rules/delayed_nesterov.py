"""Delayed Nesterov (Liu et al. 2024, arXiv 2401.09135): a step on every arrival, momentum once in a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.optimizers import Nesterov
from acefl.core.ranges import Choice, Range
from acefl.core.types import Vector
from acefl.rules.base import Method, Rule
from acefl.rules.fedbuff import FedBuffRule


@dataclass(frozen=True)
class DelayedNesterov(Method):
    """A step on each arriving update over `period`; every `period` steps the mean of these enters the momentum.

    Momentum that takes in every stale update at once is what makes asynchronous training with momentum fail. What
    comes together is averaged, and counts as one. `acefl.Nesterov` does the same for other methods.

    Args:
        period: Steps from one look at the momentum to the next, the paper's N.
        beta: Decay of the momentum.
        c: Share of the momentum that each step in between takes, up to 1 / period; 0: all of it every `period` steps.
    """

    period: int = 10  # the paper's N
    beta: float = 0.9
    c: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer  # noqa: B018  # refuses wrong settings

    @property
    def optimizer(self) -> Nesterov:
        """What the server steps with."""
        return Nesterov(self.beta, self.period, self.c)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"period": Range(2.0, 50.0, whole=True), "beta": Choice((0.5, 0.9))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return DelayedNesterovRule(like, self.optimizer)


class DelayedNesterovRule(FedBuffRule):
    """Vanilla ASGD that brings its optimizer."""

    def __init__(self, like: Vector, optimizer: Nesterov) -> None:
        super().__init__(like, 1, lambda staleness: 1.0)
        self.optimizer = optimizer
