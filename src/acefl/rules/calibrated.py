"""One family of which ACE, MIFA, CA²FL, FedBuff and ASGD are corners.

A step is made of everybody's remembered updates and of what the arriving clients changed in theirs. Stepping on the
memory alone is late, stepping on the changes alone is noisy; `c` sets how much of a change is taken at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from acefl.core.errors import one_of, require_number
from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.ace import AllClientsRule
from acefl.rules.base import Buffered, Rule
from acefl.rules.fedbuff import FedBuffRule
from acefl.rules.settings import WARMUPS, check_count, check_table, empty_vector
from acefl.table import Accumulator, Table

SHARE = "share"


@dataclass(frozen=True)
class Calibrated(Buffered):
    """Steps on beta h + (c / |S|) sum over S of (u_i - beta h_i) once `buffer` updates are in.

    h_i is what client i sent before and h the mean of these over all clients; S are the clients that came since the
    last step and u_i what they sent. Of a client that came twice, what it sent first counts 1 - beta: in the sum, and
    in |S|.

    Args:
        c: How much of the arriving changes is taken: a number above 0, or `share`, their share of all clients.
        beta: How much is remembered, from 0 (nothing, and no table) to 1.
        buffer: Arrivals per step.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
        warmup: `wait` for everybody's first update, take the mean over clients `seen` so far, or count clients that
            have not come yet as `zeros`. With beta=0 nobody is waited for.
    """

    c: float | str = 0.3
    beta: float = 1.0
    buffer: int = 1
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"
    warmup: str = "wait"

    def __post_init__(self) -> None:
        if self.c != SHARE:
            require_number("c", self.c, lambda c: c > 0, f"a finite number above 0, or {SHARE!r}")
        require_number("beta", self.beta, lambda beta: 0 <= beta <= 1, "a number from 0 to 1")
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)
        one_of("warmup", self.warmup, (*WARMUPS, "zeros"))

    @property
    def cache_is_history(self) -> bool:
        """As in CA²FL's error terms: the expectation is over the buffer's samples alone."""
        return self.beta > 0

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"c": Range(1.0 / clients, 1.0)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        table = Table(clients, like, encoding=self.table, home=self.home) if self.beta else None
        return CalibratedRule(self, clients, like, table)


class CalibratedRule(AllClientsRule):
    """Two sums: of the table's rows, before and after the buffer, and of the buffer itself.

    With T the sum of rows, B what it was at the last step and F the sum of the buffer, the direction is
    beta B/n + (c/|S|) ((1 - beta) F + beta (T - B)); for c = |S|/n that is (beta T + (1 - beta) F) / n.
    """

    saved = (*AllClientsRule.saved, "table", "_total", "_before", "_fresh", "_in_buffer", "_leaving", "_gone", "_count")

    def __init__(self, settings: Calibrated, clients: int, like: Vector, table: Table | None) -> None:
        super().__init__([1.0] * clients, like, wait=settings.warmup == "wait" and table is not None)
        self._beta, self._buffer = settings.beta, settings.buffer
        self._c = None if settings.c == SHARE else float(settings.c)  # None: |S| / n
        self._zeros = settings.warmup == "zeros"
        self.table = table
        self._total = None if table is None else Accumulator(like)  # T
        self._before = None if table is None or self._c is None else empty_vector(like)  # B
        self._fresh = None if self._beta == 1 else FedBuffRule(like, 1, lambda staleness: 1.0)  # F
        self._in_buffer: set[int] = set()
        self._leaving: set[int] = set()  # left for good while in the buffer: they count until it is emptied
        self._gone: set[int] = set()
        self._count = 0

    def absorb(self, arrival: Arrival) -> bool:
        self._see(arrival.client)
        self._leaving.discard(arrival.client)
        self._gone.discard(arrival.client)
        if self.table is not None and self._total is not None:
            self.table.settle(self._total, range(self.table.clients))
            self.table.exchange(arrival.client, arrival.update, self._total, 1.0)
        if self._fresh is not None:
            self._fresh.absorb(arrival)
        self._in_buffer.add(arrival.client)
        self._count += 1
        return not self._warming and self._count >= self._buffer

    def direction(self) -> Vector:
        clients = len(self._members) - len(self._gone) if self._zeros else len(self._seen)
        distinct = len(self._in_buffer)
        arrived = distinct + (1.0 - self._beta) * (self._count - distinct)  # |S|
        c, over = (1.0, clients) if self._c is None else (self._c, arrived)
        if self._total is None:
            self._direction.zero_()
        elif self._before is None:
            torch.mul(self._total.value, self._beta / clients, out=self._direction)
        else:
            change = torch.sub(self._total.value, self._before, out=self._direction)
            change.mul_(self._beta * c / over).add_(self._before, alpha=self._beta / clients)
        if self._fresh is not None:
            self._direction.add_(self._fresh.direction(), alpha=(1.0 - self._beta) * c * (self._count / over))
        return self._direction

    def clear(self) -> None:
        for client in sorted(self._leaving):
            super().leave(client)
        self._gone |= self._leaving
        self._leaving.clear()
        if self._fresh is not None:
            self._fresh.clear()
        self._in_buffer.clear()
        self._count = 0
        self._remember()

    def join(self, clients: int, weight: float = 1.0) -> None:
        """All count the same."""
        super().join(clients)
        if self.table is not None:
            self.table.grow(clients)

    def leave(self, client: int) -> bool:
        """What it sent no longer counts. Where changes count for more than their share of the mean, the change it sent
        to this buffer does until the step: there is no knowing any more what it was a change of."""
        if self._before is not None and client in self._in_buffer:
            self._leaving.add(client)
            return False
        if self.table is not None and self._before is not None:
            self.table.add_row(client, self._before, -1.0)
        super().leave(client)
        self._gone.add(client)
        if not self._count:
            self._remember()
        return False

    def _remember(self) -> None:
        if self._before is not None and self._total is not None:
            self._before.copy_(self._total.value)

    def _drop(self, client: int) -> None:
        if self.table is not None and self._total is not None:
            self.table.add_row(client, self._total, -1.0)
            self.table.forget(client)
