"""MIFA (Gu, Huang, Zhang and Huang, NeurIPS 2021, arXiv 2106.04159): rounds that do not wait for the inactive, whose
memorised updates count instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acefl.core.errors import one_of
from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.ace import IncrementalACE
from acefl.rules.base import Buffered, Rule
from acefl.rules.settings import WARMUPS, check_count, check_table
from acefl.table import Table


@dataclass(frozen=True)
class MIFA(Buffered):
    """After every `buffer` arrivals, a step on the mean over all clients of their latest updates.

    A round is over when `buffer` clients have been active, whoever they are. With `buffer=1` this is ACE: what MIFA
    does per round, ACE does per arrival. `warmup="wait"` makes no step until everybody has reported once, as the paper
    assumes of its first round.

    Args:
        buffer: Arrivals per step.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
        warmup: `wait` or `seen`, as for ACE.
    """

    buffer: int = 10  # how many arrivals make a round
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"
    warmup: str = "wait"

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)
        one_of("warmup", self.warmup, WARMUPS)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"warmup": Choice(("wait", "seen"))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        table = Table(clients, like, encoding=self.table, home=self.home)
        return MIFARule(self.buffer, clients, like, table, wait=self.warmup == "wait")


class MIFARule(IncrementalACE):
    """ACE's table and mean, asked once per round."""

    saved = (*IncrementalACE.saved, "_arrivals")

    def __init__(self, buffer: int, clients: int, like: Vector, table: Table, *, wait: bool) -> None:
        super().__init__([1.0] * clients, like, table, wait=wait)
        self._buffer = buffer
        self._arrivals = 0  # of this round

    def absorb(self, arrival: Arrival) -> bool:
        self._arrivals += 1
        return super().absorb(arrival) and self._arrivals >= self._buffer

    def join(self, clients: int, weight: float = 1.0) -> None:
        """All count the same."""
        super().join(clients)

    def clear(self) -> None:
        self._arrivals = 0
