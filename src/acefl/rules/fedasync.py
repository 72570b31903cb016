"""FedAsync (Xie, Koyejo and Gupta 2019, arXiv 1903.03934): mix each arriving client's model into the current one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from acefl.core.errors import one_of, require_number
from acefl.core.ranges import Choice, Range
from acefl.core.types import Vector
from acefl.rules.base import Method, Rule, Upload
from acefl.rules.fedbuff import FedBuffRule

STALENESS = ("constant", "polynomial", "hinge")


@dataclass(frozen=True)
class FedAsync(Method):
    """w <- (1 - alpha_t) w + alpha_t w_i, where w_i is the model the client ended with, and alpha_t = alpha * s(tau).

    s is 1 (`constant`), (1 + tau)^-a (`polynomial`), or 1 up to a staleness of b and 1 / (a (tau - b) + 1) beyond
    (`hinge`). A client that works long on an old model pulls the current one back to it: that is the method. `lr` is
    the clients' learning rate; what a client with local steps of its own sends is taken whole with lr=1.

    Args:
        alpha: Weight of a fresh client model, above 0 and up to 1.
        staleness: `constant`, `polynomial` or `hinge`.
        a: Exponent or slope of s; None: 0.5 for `polynomial`, 10 for `hinge`.
        b: Staleness up to which `hinge` is 1.
    """

    alpha: float = 0.6
    staleness: str = "polynomial"
    a: float | None = None  # None: the paper's 0.5 for polynomial, 10 for hinge
    b: float = 4.0

    uploads = Upload.MODEL

    def __post_init__(self) -> None:
        one_of("staleness", self.staleness, STALENESS)
        require_number("alpha", self.alpha, lambda alpha: 0 < alpha <= 1, "above 0, up to 1")
        if self.a is not None:
            require_number("a", self.a, lambda a: a > 0, "a finite number above 0")
        require_number("b", self.b, lambda b: b >= 0, "a finite number of at least 0")

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"alpha": Range(0.1, 1.0, most=1.0), "a": Range(0.1, 2.0)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FedAsyncRule(like, self._weight)

    def _weight(self, staleness: int) -> float:
        if self.staleness == "polynomial":
            return self.alpha * math.pow(1.0 + staleness, -(0.5 if self.a is None else self.a))
        if self.staleness == "hinge" and staleness > self.b:
            return self.alpha / ((10.0 if self.a is None else self.a) * (staleness - self.b) + 1.0)
        return self.alpha


class FedAsyncRule(FedBuffRule):
    """Given how far a client's model lies from the current one, w - w_i, the direction is alpha_t times that.

    Of several that come before one step, the mean.
    """

    uploads = Upload.MODEL

    def __init__(self, like: Vector, weigh: Callable[[int], float]) -> None:
        super().__init__(like, 1, weigh)
