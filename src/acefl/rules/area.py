"""AREA (Iakovidou and Kim, arXiv 2405.10123): asynchronous exact averaging of all clients' latest models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.core.types import Arrival, Vector
from acefl.rules.base import Buffered, Rule, Upload
from acefl.rules.settings import check_count, check_table, empty_vector
from acefl.table import Accumulator, Table


@dataclass(frozen=True)
class AREA(Buffered):
    """After every `buffer` arrivals, w <- w + (1/n) sum over them of what each client's model has changed since its
    last one.

    A client's model before its first is the one at the start. The paper's clients remember their last model and send
    the change; here the server remembers it in a table, which gives the same steps. `lr` is the clients' learning rate;
    what a client with local steps of its own sends is taken whole with lr=1.

    Args:
        buffer: Arrivals per step.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
    """

    buffer: int = 1
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"

    uploads = Upload.MODEL

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return AREARule(like, self.buffer, Table(clients, like, encoding=self.table, home=self.home))


class AREARule(Rule):
    """Rows hold clients' models as distances from the model at the start, to subtract from it like every update.

    The rule is given how far a client's model lies from the current one, and knows how far that one lies from the
    start: the mean of the rows at the last step.
    """

    uploads = Upload.MODEL

    saved = ("table", "_total", "_position", "_gone", "_count")

    def __init__(self, like: Vector, buffer: int, table: Table) -> None:
        self._buffer = buffer
        self.table = table
        self._total = Accumulator(like)  # sum of the rows
        self._position = empty_vector(like)  # start - current model
        self._direction = empty_vector(like)
        self._gone: set[int] = set()
        self._count = 0

    def absorb(self, arrival: Arrival) -> bool:
        self._gone.discard(arrival.client)
        self.table.settle(self._total, range(self.table.clients))
        self.table.exchange(arrival.client, self._position + arrival.update, self._total, 1.0)
        self._count += 1
        return self._count >= self._buffer

    def direction(self) -> Vector:
        counting = self.table.clients - len(self._gone)
        return torch.mul(self._total.value, 1.0 / counting, out=self._direction).sub_(self._position)

    def clear(self) -> None:
        self._position.add_(self._direction)
        self._count = 0

    def join(self, clients: int, weight: float = 1.0) -> None:
        """Newcomers count once they have come."""
        self._gone.update(range(self.table.clients, clients))
        self.table.grow(clients)

    def leave(self, client: int) -> bool:
        if client not in self._gone:
            self.table.add_row(client, self._total, -1.0)
            self.table.forget(client)
            self._gone.add(client)
        return False
