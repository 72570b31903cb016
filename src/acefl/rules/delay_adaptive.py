"""Delay-adaptive asynchronous SGD (Koloskova et al. 2022): a smaller step for a staler gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.ranges import Choice, Range
from acefl.core.types import Vector
from acefl.rules.base import Method, Rule
from acefl.rules.fedbuff import FedBuffRule
from acefl.rules.settings import check_count


@dataclass(frozen=True)
class DelayAdaptiveASGD(Method):
    """The full step while staleness is at most `threshold`, else the step times threshold / staleness.

    The paper asks for less than min(lr, 1 / (4 L staleness)) beyond the threshold; L is unknown in practice, and
    lr * threshold / staleness has the same form. `threshold=None` takes the number of clients, the concurrency when all
    are busy.
    """

    threshold: int | None = None  # the paper's tau_C

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_count("threshold", self.threshold)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"threshold": Range(max(1.0, clients / 8), 8.0 * clients, whole=True)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        threshold = self.threshold or clients
        return FedBuffRule(like, 1, lambda staleness: min(1.0, threshold / max(staleness, 1)))
