"""FADAS (Wang, Wang, Lu and Chen, ICML 2024, arXiv 2407.18365): FedBuff's buffer, and AMSGrad on the server with a
learning rate that minds the delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.optimizers import Adam
from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Buffered, Rule
from acefl.rules.fedbuff import FedBuffRule
from acefl.rules.settings import check_count


@dataclass(frozen=True)
class FADAS(Buffered):
    """AMSGrad on the mean of `buffer` updates. `lr` is AMSGrad's.

    With `threshold`, a step whose stalest update is older than that is made with min(lr, 1 / that staleness).

    Args:
        buffer: Arrivals per step.
        threshold: Staleness above which the step is made smaller; None: never.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment; larger is less adaptive.
    """

    buffer: int = 10  # the paper's M
    threshold: int | None = None  # the paper's tau_c; None: the same lr whatever the delay
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        if self.threshold is not None:
            check_count("threshold", self.threshold)
        self.optimizer  # noqa: B018  # refuses wrong settings

    @property
    def optimizer(self) -> Adam:
        """What the server steps with."""
        return Adam(self.beta1, self.beta2, self.epsilon, amsgrad=True)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"beta1": Choice((0.5, 0.9)), "epsilon": Choice((1e-8, 1e-3))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FADASRule(like, self.buffer, self.threshold, self.optimizer)


class FADASRule(FedBuffRule):
    """A plain buffer that knows how stale its stalest update is."""

    saved = (*FedBuffRule.saved, "_stalest")

    def __init__(self, like: Vector, buffer: int, threshold: int | None, optimizer: Adam) -> None:
        super().__init__(like, buffer, lambda staleness: 1.0)
        self.optimizer = optimizer
        self._threshold = threshold
        self._stalest = 0  # the paper's tau_max

    def absorb(self, arrival: Arrival) -> bool:
        self._stalest = max(self._stalest, arrival.staleness)
        return super().absorb(arrival)

    def rate(self, lr: float) -> float:
        patient = self._threshold is None or self._stalest <= self._threshold
        return lr if patient else min(lr, 1.0 / self._stalest)

    def clear(self) -> None:
        super().clear()
        self._stalest = 0
