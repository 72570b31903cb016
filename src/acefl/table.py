"""Every client's latest update, and running sums over them that do not drift."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from acefl.errors import InvalidInput, require
from acefl.kernels import Accumulator, Key, Layout, Row, Sum, choose
from acefl.types import State, Vector

class Table:
    """Every client's latest update: n rows of d numbers, in some encoding, in some home."""

    def __init__(
        self,
        clients: int,
        like: Vector,
        *,
        encoding: str = "fp32",
        home: str | os.PathLike[str] = "memory",
        seed: int = 0,
    ) -> None:
        self.clients, self.dim, self.encoding, self.seed = clients, like.numel(), encoding, seed
        self._layout = Layout(encoding, self.dim)
        self._kernels = choose(self._layout, like.device)
        self._device = like.device
        self._rows: dict[int, Row] = {}
        self._visits: dict[int, int] = {}
        self.changed: set[int] = set()

    def __contains__(self, client: int) -> bool:
        return client in self._rows

    @property
    def nbytes(self) -> int:
        """Bytes the table takes when every client has a row."""
        return self.clients * self._layout.row_bytes

    def exchange(self, client: int, new: Vector, into: Accumulator | Vector, scale: float) -> None:
        """into += scale * (stored(new) - stored(old)); the row now holds stored(new)."""
        self._kernels.exchange(self._row(client), new, _sum(into), scale, self._key(client))
        self.changed.add(client)

    def exchange_and_step(
        self, client: int, new: Vector, into: Accumulator, scale: float, model: Vector, rate: float
    ) -> None:
        """`exchange`, then model -= rate * into.value, in one pass over memory."""
        self._kernels.exchange_and_step(
            self._row(client), new, _sum(into), scale, self._key(client), model, rate
        )
        self.changed.add(client)

    def add_row(self, client: int, into: Accumulator | Vector, scale: float) -> None:
        """into += scale * stored(row)."""
        if client in self._rows:
            self._kernels.add(self._rows[client], _sum(into), scale)

    def row(self, client: int) -> Vector:
        """A decoded copy of a row; zeros for a client without one."""
        self._check(client)
        if client not in self._rows:
            return torch.zeros(self.dim, device=self._device)
        return self._kernels.decode(self._rows[client])

    def forget(self, client: int) -> None:
        """Drop a row; the caller has subtracted it from every sum that held it."""
        self._check(client)
        self._rows.pop(client, None)
        self.changed.add(client)

    def grow(self, clients: int) -> None:
        """Make room for more clients."""
        require(clients >= self.clients, f"a table of {self.clients} clients cannot shrink to {clients}")
        self.clients = clients

    def total(self, weights: Sequence[float] | None = None) -> Vector:
        """The (weighted) sum of all rows in float64, from the rows alone: what a running sum must equal."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self._device)
        for client in sorted(self._rows):
            total.add_(self.row(client).double(), alpha=1.0 if weights is None else weights[client])
        return total

    def state_dict(self) -> State:
        present = sorted(self._rows)
        rows = [self._rows[client].raw for client in present]
        empty = torch.zeros((0, self._layout.row_bytes), dtype=torch.uint8)
        return {
            "clients": self.clients,
            "present": present,
            "visits": [self._visits.get(client, 0) for client in range(self.clients)],
            "rows": torch.stack(rows) if rows else empty,
        }

    def load_state_dict(self, state: State) -> None:
        self.clients = state["clients"]
        self._visits = dict(enumerate(state["visits"]))
        self._rows = {}
        for client, raw in zip(state["present"], state["rows"], strict=True):
            self._row(client).raw.copy_(raw)
        self.changed = set(range(self.clients))

    def _check(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise InvalidInput(f"client {client} is not in a table of {self.clients} clients")

    def _key(self, client: int) -> Key:
        visit = self._visits[client] = self._visits.get(client, 0) + 1
        return Key.of(self.seed, client, visit)

    def _row(self, client: int) -> Row:
        row = self._rows.get(client)
        if row is None:
            self._check(client)
            raw = torch.zeros(self._layout.row_bytes, dtype=torch.uint8, device=self._device)
            row = self._rows[client] = Row.of(raw, self._layout)
        return row


def _sum(into: Accumulator | Vector) -> Sum:
    if not isinstance(into, Accumulator):
        return Sum(into)
    into.stale = into.sum.exponents is not None
    return into.sum
