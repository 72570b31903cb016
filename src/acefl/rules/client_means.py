"""The mean of each client's updates, and the mean over clients of those means: everybody counts once, however often it
came."""

from __future__ import annotations

import os

import torch

from acefl.core.state import Stateful
from acefl.core.types import Vector
from acefl.rules.settings import empty_vector
from acefl.table import Accumulator, Table


class ClientMeans(Stateful):
    """Rows hold the mean of what a client has sent since the last `clear`; an arrival costs O(d)."""

    saved = ("_table", "_total", "counts")

    def __init__(self, clients: int, like: Vector, home: str | os.PathLike[str] = "memory") -> None:
        self._table = Table(clients, like, home=home)
        self._total = Accumulator(like)
        self._mean = empty_vector(like)
        self.counts: dict[int, int] = {}  # client -> how many updates are in its mean

    def add(self, client: int, update: Vector) -> None:
        count = self.counts[client] = self.counts.get(client, 0) + 1
        if count > 1:
            update = torch.lerp(self._table.row(client), update.to(torch.float32), 1.0 / count)
        self._table.exchange(client, update, self._total, 1.0)

    def mean(self) -> Vector:
        """Of the clients' means; borrowed."""
        return torch.mul(self._total.value, 1.0 / len(self.counts), out=self._mean)

    def drop(self, client: int) -> None:
        if self.counts.pop(client, 0):
            self._table.add_row(client, self._total, -1.0)
            self._table.forget(client)
        if not self.counts:
            self._total.zero_()

    def clear(self) -> None:
        for client in self.counts:
            self._table.forget(client)
        self.counts.clear()
        self._total.zero_()

    def grow(self, clients: int) -> None:
        self._table.grow(clients)
