"""AREA (Iakovidou and Kim, arXiv 2405.10123): asynchronous exact averaging of all clients' latest models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.rules.settings import check_count, check_table, empty_vector
from acefl.table import Accumulator, Table
from acefl.types import Arrival, Rule, State, Vector


@dataclass(frozen=True)
class AREA:
    """After every `buffer` arrivals, w <- w + (1/n) sum over them of what each client's model has changed since its
    last one.

    A client's model before its first is the one at the start. The paper's clients remember their last model and send
    the change; here the server remembers it in a table, which gives the same steps. `lr` is the clients' learning rate;
    what a client with local steps of its own sends is taken whole with lr=1.
    """

    buffer: int = 1
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"

    mixes_models = True

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return MeanOfModelsRule(like, self.buffer, Table(clients, like, encoding=self.table, home=self.home))


class MeanOfModelsRule:
    """Rows hold clients' models as distances from the model at the start, to subtract from it like every update.

    The rule is given how far a client's model lies from the current one, and knows how far that one lies from the
    start: the mean of the rows at the last step.
    """

    mixes_models = True

    def __init__(self, like: Vector, buffer: int, table: Table) -> None:
        self._buffer = buffer
        self.table = table
        self._total = Accumulator(like)  # sum of the rows
        self._position = empty_vector(like)  # start - current model
        self._direction = empty_vector(like)
        self._gone: set[int] = set()
        self._count = 0
        self._taken = False

    def absorb(self, arrival: Arrival) -> bool:
        if self._taken:
            self._position.add_(self._direction)
            self._count, self._taken = 0, False
        self._gone.discard(arrival.client)
        self.table.settle(self._total, range(self.table.clients))
        self.table.exchange(arrival.client, self._position + arrival.update, self._total, 1.0)
        self._count += 1
        return self._count >= self._buffer

    def direction(self) -> Vector:
        self._taken = True
        counting = self.table.clients - len(self._gone)
        return torch.mul(self._total.value, 1.0 / counting, out=self._direction).sub_(self._position)

    def grow(self, clients: int, weight: float = 1.0) -> None:
        """Make room for clients that were unknown at the start; they count once they have come."""
        self._gone.update(range(self.table.clients, clients))
        self.table.grow(clients)

    def forget(self, client: int) -> None:
        """The client has left for good: its model no longer counts in the mean."""
        if client not in self._gone:
            self.table.add_row(client, self._total, -1.0)
            self.table.forget(client)
            self._gone.add(client)

    def state_dict(self) -> State:
        return {
            "table": self.table.state_dict(),
            "total": self._total.state_dict(),
            "position": self._position.clone(),
            "direction": self._direction.clone(),
            "gone": sorted(self._gone),
            "count": self._count,
            "taken": self._taken,
        }

    def load_state_dict(self, state: State) -> None:
        self.table.load_state_dict(state["table"])
        self._total.load_state_dict(state["total"])
        self._position.copy_(state["position"])
        self._direction.copy_(state["direction"])
        self._gone = set(state["gone"])
        self._count, self._taken = int(state["count"]), bool(state["taken"])
