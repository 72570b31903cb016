"""CA²FL (Wang et al. 2024): a buffer like FedBuff's, calibrated by a cache of every client's last update."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.core.turns import Turns
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Advanced, Buffered, Rule
from acefl.rules.settings import check_count, check_table, empty_vector
from acefl.table import Accumulator, Table


@dataclass(frozen=True)
class CA2FL(Buffered):
    """Steps on h + Δ / |S| once `buffer` updates are in.

    h is the mean over all clients of their cached updates when the buffer was last emptied, Δ the sum of what each
    client in the buffer changed since, S the distinct clients in it. A client's cache is replaced at once, so a client
    that arrives twice in one buffer contributes its latest change once.

    Args:
        buffer: Arrivals per step.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
    """

    buffer: int = 10  # the paper's M
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"

    cache_is_history = True  # the paper's error terms take the expectation over the buffer's samples alone

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return CA2FLRule(like, self.buffer, Table(clients, like, encoding=self.table, home=self.home))


class CA2FLRule(Rule):
    saved = ("table", "_total", "_before", "_in_buffer", "_leaving", "_gone", "_count")

    def __init__(self, like: Vector, buffer: int, table: Table) -> None:
        self._buffer = buffer
        self.table = table
        self._total = Accumulator(like)  # sum over clients of their cached updates
        self._before = empty_vector(like)  # the same when the buffer was last emptied: h times the number of clients
        self._direction = empty_vector(like)
        self._in_buffer: set[int] = set()  # S
        self._leaving: set[int] = set()  # left for good while in the buffer: they count until it is emptied
        self._gone: set[int] = set()
        self._count = 0

    def absorb(self, arrival: Arrival) -> bool:
        self.table.settle(self._total, range(self.table.clients))
        return self._take(arrival.client, arrival.update)

    def _take(self, client: int, update: Vector) -> bool:
        self._leaving.discard(client)
        self._gone.discard(client)
        self.table.exchange(client, update, self._total, 1.0)
        self._in_buffer.add(client)
        self._count += 1
        return self._count >= self._buffer

    def advance_many(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced | None:
        exact = type(self) is CA2FLRule  # a rule made of this one may step otherwise
        if not exact or not self.table.collects(self._total, model):
            return None
        arrivals = zip(turns.clients, turns.updates, strict=True)
        start, first = version, version + (self._count + 1 >= self._buffer)  # the version after the first turn
        if first == start:
            models[0].copy_(model)
        after: list[int] = []
        while len(after) < len(turns):
            with self.table.collected(self._total, model, models[:0]):
                for client, update in itertools.islice(arrivals, self._buffer - self._count):
                    full = self._take(client, update)
                    after.append(version)
            if full:
                model.sub_(self.direction(), alpha=lr)
                self.clear()
                version = after[-1] = version + 1
                models[version - first].copy_(model)
        return Advanced(after, self._direction if version > start else None)

    def direction(self) -> Vector:
        change = torch.sub(self._total.value, self._before, out=self._direction)  # Δ
        counting = self.table.clients - len(self._gone)
        return change.mul_(1.0 / len(self._in_buffer)).add_(self._before, alpha=1.0 / counting)

    def clear(self) -> None:
        for client in sorted(self._leaving):
            self._drop(client)
        self._leaving.clear()
        self._before.copy_(self._total.value)
        self._in_buffer.clear()
        self._count = 0

    def join(self, clients: int, weight: float = 1.0) -> None:
        """The mean is over newcomers too from now on."""
        self.table.grow(clients)

    def leave(self, client: int) -> bool:
        """Its cached update no longer counts, but what it sent to this buffer does."""
        if client in self._in_buffer:
            self._leaving.add(client)
        else:
            self.table.add_row(client, self._before, -1.0)
            self._drop(client)
            if not self._count:
                self._before.copy_(self._total.value)
        return False

    def _drop(self, client: int) -> None:
        self.table.add_row(client, self._total, -1.0)
        self.table.forget(client)
        self._gone.add(client)
