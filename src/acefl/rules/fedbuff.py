"""FedBuff (Nguyen et al. 2022, arXiv 2106.06639): step on the mean of a buffer of updates, then empty it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from acefl.core import kernels
from acefl.core.errors import one_of
from acefl.core.ranges import Choice, Range
from acefl.core.turns import Turns
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Advanced, Buffered, Rule
from acefl.rules.settings import check_count, empty_vector

STALENESS = ("none", "sqrt")


@dataclass(frozen=True)
class FedBuff(Buffered):
    """The mean of `buffer` updates per step; `staleness="sqrt"` weighs each by 1 / sqrt(1 + staleness).

    A client's update is divided by nothing, as in the paper: with one local step of size lr_local the effective step is
    lr * lr_local.
    """

    buffer: int = 10  # the paper's M
    staleness: str = "none"

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        one_of("staleness", self.staleness, STALENESS)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"staleness": Choice(("none", "sqrt"))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        weigh = _inverse_root if self.staleness == "sqrt" else _one
        return FedBuffRule(like, self.buffer, weigh)


def _one(staleness: int) -> float:
    return 1.0


def _inverse_root(staleness: int) -> float:
    return 1.0 / math.sqrt(1.0 + staleness)


class FedBuffRule(Rule):
    """Steps once `buffer` updates are in; what a busy server absorbs beyond that before it steps joins the same mean.

    Vanilla ASGD and its delay-adaptive form are this rule with a buffer of one.
    """

    saved: ClassVar[tuple[str, ...]] = ("_sum", "_count")

    def __init__(self, like: Vector, buffer: int, weigh: Callable[[int], float]) -> None:
        self._buffer = buffer
        self.weigh = weigh
        self._sum = empty_vector(like)
        self._direction = empty_vector(like)
        self._count = 0
        self._loop = kernels.buffer_loop(like)

    def absorb(self, arrival: Arrival) -> bool:
        self._add(arrival.update, self.weigh(arrival.staleness))
        return self._count >= self._buffer

    def _add(self, update: Vector, weight: float) -> None:
        if self._count == 0:
            torch.mul(update, weight, out=self._sum)
        else:
            self._sum.add_(update, alpha=weight)
        self._count += 1

    def advance_many(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced | None:
        if type(self) is not FedBuffRule or model.dtype != torch.float32:  # a rule made of this one absorbs otherwise
            return None
        if self._loop is not None and model.is_contiguous():
            return self._advance_in_one_call(self._loop, turns, version, model, lr, models)
        return self._advance_one_by_one(turns, version, model, lr, models)

    def _advance_in_one_call(
        self, loop: Callable[..., None], turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced:
        held, start = self._count, version
        weights, after = [], []
        for trained_on in turns.trained_on:
            weights.append(self.weigh(version - trained_on))
            self._count += 1
            if self._count >= self._buffer:
                version += 1
                self._count = 0
            after.append(version)
        loop(turns.updates, weights, held, self._buffer, self._sum, self._direction, model, models, lr)
        return Advanced(after, self._direction if version > start else None)

    def _advance_one_by_one(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced:
        """Steps are written where the next one starts from, and a buffer of one is not copied before it is read."""
        rows = models.unbind(0)
        after: list[int] = []
        last: Vector | None = None
        for update, trained_on in zip(turns.updates, turns.trained_on, strict=True):
            weight = self.weigh(version - trained_on)
            direction = update if self._buffer == 1 == weight else self._summed(update, weight)
            if direction is not None:
                row = version - after[0] + 1 if after else 0
                torch.sub(rows[row - 1] if row else model, direction, alpha=lr, out=rows[row])
                version, last = version + 1, direction
            elif not after:
                rows[0].copy_(model)
            after.append(version)
        model.copy_(rows[version - after[0]])
        return Advanced(after, self._sum.copy_(last) if last is not None and self._buffer == 1 else last)

    def _summed(self, update: Vector, weight: float) -> Vector | None:
        """The direction, if a step is due with this one; the buffer is then emptied."""
        self._add(update, weight)
        if self._count < self._buffer:
            return None
        direction = self.direction()
        self.clear()
        return direction

    def direction(self) -> Vector:
        return torch.div(self._sum, self._count, out=self._direction) if self._count > 1 else self._sum

    def clear(self) -> None:
        self._count = 0
