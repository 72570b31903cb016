"""A running sum that does not drift."""

from __future__ import annotations

import torch

from acefl.kernels.layout import GROUP, LOWEST, Sum
from acefl.types import State, Vector

LONG = 1 << 16  # from this length on, memory traffic is what a sum costs


class Accumulator:
    """A running sum of many terms that come and go, kept more precisely than the float32 `value` it is read as.

    Short sums are float64: the fewest operations. Long ones are integers, one exponent per group of numbers: no more
    bytes than float32, and a term that is added and later taken away leaves exactly nothing behind.
    """

    def __init__(self, like: Vector) -> None:
        self._value: Vector | None = None
        if like.numel() < LONG:
            self._value = torch.zeros_like(like, dtype=torch.float32)
            self.sum = Sum(torch.zeros_like(like, dtype=torch.float64), self._value)
        else:
            groups = -(-like.numel() // GROUP)
            exponents = torch.full((groups,), LOWEST, dtype=torch.int32, device=like.device)
            self.sum = Sum(torch.zeros_like(like, dtype=torch.int32), exponents=exponents)
        self.stale = False

    @property
    def value(self) -> Vector:
        """The sum as float32. Borrowed: read it before the next change, never write to it."""
        from acefl.kernels.reference import read

        if self._value is None:
            self._value = torch.zeros_like(self.sum.total, dtype=torch.float32)
            self.stale = True
        if self.stale:
            read(self.sum, self._value)
            self.stale = False
        return self._value

    def zero_(self) -> None:
        self.sum.total.zero_()
        if self.sum.exponents is not None:
            self.sum.exponents.fill_(LOWEST)
            self.stale = True
        else:
            self.value.zero_()

    def state_dict(self) -> State:
        state = {"total": self.sum.total.clone()}
        if self.sum.exponents is not None:
            state["exponents"] = self.sum.exponents.clone()
        return state

    def load_state_dict(self, state: State) -> None:
        self.sum.total.copy_(state["total"])
        if self.sum.exponents is not None:
            self.sum.exponents.copy_(state["exponents"])
            self.stale = True
        else:
            self.value.copy_(self.sum.total)
