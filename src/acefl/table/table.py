"""Every client's latest update, and running sums over them that do not drift."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from acefl.core import kernels
from acefl.core.errors import InvalidInput, require
from acefl.core.kernels.layout import GROUP, LOWEST, NO_DRAWS, Key, Layout, Sum, Tape, native
from acefl.core.state import snapshot
from acefl.core.types import State, Vector
from acefl.table import storage as homes

_COARSE = 12  # bits that a unit may be coarser than the numbers in the sum need
StepOn = Callable[[float, float], None]
_LOOK_EVERY = 64  # changes of a sum: a look costs about as much as one of them


class Accumulator:
    """A running sum of terms that come and go, kept more precisely than the float32 `value` it is read as.

    Short sums are float64: the fewest operations. Long ones are integers with one exponent per group of numbers: no
    more bytes than float32, and a term that is added and later taken away leaves exactly nothing behind.

    An exponent rises with the largest term, so after a spike the sum counts in coarse units, 2**-27 of that spike.
    `Table.settle` brings them down again once the rows have become small: a unit is then at most 2**-17 of the group's
    largest sum or 2**-15 of its largest row, whichever is more. Where units need not fall by 2**12 it changes no bit.

    Args:
        like: A vector with the length, dtype and device of the sum.
    """

    def __init__(self, like: Vector) -> None:
        size, device = like.numel(), like.device
        long = size >= kernels.LONG
        self._total = torch.zeros(size, dtype=torch.int32 if long else torch.float64, device=device)
        self._exponents = torch.full((-(-size // GROUP) if long else 0,), LOWEST, dtype=torch.int32, device=device)
        self._value: Vector | None = None if long else torch.zeros(size, device=device)
        self._stale = False  # whether a long sum has changed since its value was written
        if self._value is None:
            self.sum = Sum(native(self._total), exponents=native(self._exponents))
        else:
            self.sum = Sum(native(self._total), value=native(self._value))
        self._changes = 0
        self._look_at = _LOOK_EVERY if long else math.inf  # changes after which to see whether the sum is coarse
        self._pause = _LOOK_EVERY  # until the look after that; doubles while looking does not help

    @property
    def value(self) -> Vector:
        """The sum as float32. Borrowed: read it before the next change, never write to it."""
        if self._value is None:
            self._value = torch.zeros_like(self._total, dtype=torch.float32)
        if self._stale:
            kernels.read(self.sum, self._value)
            self._stale = False
        return self._value

    @property
    def long(self) -> bool:
        """Whether the sum is of integers."""
        return self.sum.value is None

    def zero_(self) -> None:
        """Make it the sum of no terms."""
        self._total.zero_()
        self._exponents.fill_(LOWEST)
        self._changed_by_hand()

    def state_dict(self) -> State:
        """Its parts rather than `value`, so that a sum that was loaded goes on with the same bits."""
        state: State = {"total": self._total.clone(), "exponents": self._exponents.clone()}
        if self._look_at != math.inf:
            state["looks"] = [self._changes, self._look_at, self._pause]
        return state

    def load_state_dict(self, state: State) -> None:
        """Become the sum that was saved, which must be of the same length."""
        saved, size = state["total"], self._total.numel()
        require(saved.numel() == size, f"the saved sum has {saved.numel()} numbers, this one {size}")
        self._total.copy_(saved)
        self._exponents.copy_(state["exponents"])
        if self._look_at != math.inf:
            self._changes, self._look_at, self._pause = state["looks"]
        self._changed_by_hand()

    def changing(self) -> Sum:
        """The sum, for a kernel that is about to change it."""
        self._changes += 1
        self._stale = self.long
        return self.sum

    @property
    def wants_a_look(self) -> bool:
        """Whether so many terms came and went since the last look that the sum may have become coarse."""
        return self._changes >= self._look_at

    def renew(self, terms: int, add_all: Callable[[], None]) -> None:
        """If some group counts in units far coarser than its sum, form the sum of its `terms` terms anew by `add_all`.

        Groups whose unit would not fall by 2**12 keep their numbers: rows that large are still in the sum, and cancel.
        """
        if bool((self._largest() < 1 << (29 - _COARSE)).logical_and(self._exponents > LOWEST).any()):
            total, exponents = self._total.clone(), self._exponents.clone()
            self.zero_()
            add_all()
            kept = exponents - self._exponents < _COARSE
            self._exponents[kept] = exponents[kept]
            numbers = kept.repeat_interleave(GROUP)[: self._total.numel()]
            self._total[numbers] = total[numbers]
            self._changed_by_hand()
            self._pause = 0 if not bool(kept.all()) else 2 * self._pause
        else:
            self._pause = 0
        self._pause = max(self._pause, terms, _LOOK_EVERY)
        self._look_at = self._changes + self._pause

    def _largest(self) -> torch.Tensor:
        """The largest count of every group."""
        missing = -self._total.numel() % GROUP
        return torch.nn.functional.pad(self._total, (0, missing)).view(-1, GROUP).abs().amax(1)

    def _changed_by_hand(self) -> None:
        self._stale = self.long
        if self._value is not None and not self._stale:
            self._value.copy_(self._total)


class Table:
    """Every client's latest update: n rows of d numbers, in some encoding, in some home.

    Sums over rows are formed from what is stored, so they stay sums over the table whatever the encoding.

    Args:
        clients: Number of rows.
        like: A vector with a row's length, dtype and device.
        encoding: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
        seed: Of the stochastic rounding.
    """

    def __init__(
        self,
        clients: int,
        like: Vector,
        *,
        encoding: str = "fp32",
        home: str | os.PathLike[str] = "memory",
        seed: int = 0,
    ) -> None:
        require(clients >= 0, f"clients is {clients}; allowed: 0 or more")
        self.clients, self.dim, self.encoding = clients, like.numel(), encoding
        self.changed: set[int] = set()  # rows changed or dropped since somebody last cleared it
        self._seed, self._device = seed, like.device
        self._layout = Layout(encoding, self.dim)
        self._lossless = self._layout.encoding.bits == 32
        self._kernels = kernels.choose(self._layout, like.device)
        self._home = homes.find(home, self._layout, like.device, clients)
        self._visits: dict[int, int] = {}
        self._tape: Tape | None = None  # changes that are collected

    def __contains__(self, client: int) -> bool:
        return client in self._home.present

    @property
    def nbytes(self) -> int:
        """Bytes the table takes when every client has a row, scales included."""
        return self.clients * self._layout.row_bytes

    def exchange(self, client: int, new: Vector, into: Accumulator | Vector, scale: float) -> None:
        """into += scale * (stored(new) - stored(old)); the row now holds stored(new).

        A client without a row counts as zeros.
        """
        row = self._home.open(client)
        if self._tape is not None:  # of turns: their updates were looked at
            self._tape.exchange(row, new, scale, self._key(client))
        else:
            new = self._checked(client, new)
            self._kernels.exchange(row, new, _sum(into), scale, self._key(client))
        self._home.save(client, row)
        self.changed.add(client)

    def exchange_and_step(
        self, client: int, new: Vector, into: Accumulator, scale: float, model: Vector, rate: float
    ) -> None:
        """`exchange`, then model -= rate * into.value, bit for bit, in one pass over memory."""
        if model.dtype != torch.float32 or not model.is_contiguous():
            self.exchange(client, new, into, scale)
            model.sub_(into.value, alpha=rate)
            return
        new, row = self._checked(client, new), self._home.open(client)
        self._kernels.exchange_and_step(row, new, _sum(into), scale, self._key(client), model, rate)
        self._home.save(client, row)
        self.changed.add(client)

    def add_row(self, client: int, into: Accumulator | Vector, scale: float) -> None:
        """into += scale * stored(row); a client without a row adds nothing."""
        self._check(client)
        if client not in self:
            return
        if self._tape is not None:
            self._tape.add(self._home.open(client), scale)
        else:
            self._kernels.add(self._home.open(client), _sum(into), scale)

    def empty(self, into: Accumulator) -> None:
        """into = 0: no row is in the sum any more."""
        if self._tape is not None:
            self._tape.zero()
        else:
            into.zero_()

    @contextmanager
    def collected(
        self, into: Accumulator, model: Vector, models: torch.Tensor
    ) -> Iterator[Callable[[float, float], None]]:
        """In here, changes of rows and of this sum, and of no other, are collected, to be made in one pass at the end.

        What is given is called with `rate` and `scale` for a step in between, model -= rate * (scale * into.value);
        the model after the k-th of them goes to row k of `models`.
        """
        tape = self._tape = Tape()
        try:
            yield tape.step
        finally:
            self._tape = None
        self._kernels.play(tape, into.changing(), model, models)

    def collects(self, into: Accumulator, model: Vector) -> bool:
        """Whether changes can be collected: rows stay where they are, the sum is short, the model a plain vector."""
        plain = model.dtype == torch.float32 and model.is_contiguous()
        return plain and not into.long and isinstance(self._home, homes.Memory)

    def settle(self, into: Accumulator, clients: Iterable[int], weights: Sequence[float] | None = None) -> None:
        """Let a sum over these clients' rows forget a spike that is no longer among them; costs nothing most times."""
        if into.wants_a_look:
            present = sorted(self._home.present.intersection(clients))

            def add_all() -> None:
                for client in present:
                    self.add_row(client, into, 1.0 if weights is None else weights[client])

            into.renew(len(present), add_all)

    def row(self, client: int) -> Vector:
        """A decoded copy of a row; zeros for a client without one."""
        self._check(client)
        if client not in self:
            return torch.zeros(self.dim, device=self._device)
        return self._kernels.decode(self._home.open(client))

    def forget(self, client: int) -> None:
        """Drop a row; the caller has subtracted it from every sum that held it."""
        self._check(client)
        self._home.drop(client)
        self.changed.add(client)

    def grow(self, clients: int) -> None:
        """Make room for more clients."""
        require(clients >= self.clients, f"a table of {self.clients} clients cannot shrink to {clients}")
        self._home.grow(clients)
        self.clients = clients

    def total(self, weights: Sequence[float] | None = None) -> Vector:
        """The (weighted) sum of all rows in float64, from the rows alone: what a running sum must equal."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self._device)
        for client in sorted(self._home.present):
            total.add_(self.row(client).double(), alpha=1.0 if weights is None else weights[client])
        return total

    def state_dict(self, rows: Iterable[int] | None = None) -> State:
        """Everything, bit for bit; or, with `rows`, only those rows: an increment to an earlier state."""
        present = sorted(self._home.present)
        included = present if rows is None else sorted(self._home.present.intersection(rows))
        visits = [self._visits.get(client, 0) for client in range(self.clients)]
        names = {f"{client}@{visits[client]}": client for client in included}
        copies = snapshot(names, lambda name: self._home.row_bytes(names[name]))
        return {"clients": self.clients, "present": present, "visits": visits, "rows": copies}

    def load_state_dict(self, state: State) -> None:
        """Become the table that was saved. An increment is loaded on top of the states before it."""
        clients, present, rows = state["clients"], set(state["present"]), state["rows"]
        included = [int(name.partition("@")[0]) for name in rows]
        missing = sorted(present - set(included) - self._home.present)
        require(not missing, f"an increment without rows {missing[:5]}; load the states before it first")
        if clients > self.clients:
            self.grow(clients)
        self.clients = clients
        self._visits = {client: visits for client, visits in enumerate(state["visits"]) if visits}
        dropped = self._home.present - present
        for client in dropped:
            self._home.drop(client)
        for client, saved in zip(included, rows.values(), strict=True):
            size, own = saved.numel(), self._layout.row_bytes
            require(size == own, f"a saved row takes {size} bytes, this table's {own}: another encoding or model")
            row = self._home.open(client)
            row.raw.copy_(saved)
            self._home.save(client, row)
        self.changed.update(dropped, included)

    def _check(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise InvalidInput(f"client {client} is not in a table of {self.clients} clients")

    def _checked(self, client: int, new: Vector) -> Vector:
        """The update as the kernels take it, without a copy where it is a plain float32 vector already."""
        self._check(client)
        if new.numel() != self.dim:
            raise InvalidInput(f"an update of {new.numel()} numbers for a table of {self.dim}")
        if new.dtype is torch.float32 and new.device == self._device and new.is_contiguous() and not new.requires_grad:
            return new
        return new.detach().to(self._device, torch.float32).contiguous()

    def _key(self, client: int) -> Key:
        visit = self._visits[client] = self._visits.get(client, 0) + 1
        return NO_DRAWS if self._lossless else Key.of(self._seed, client, visit)


def _sum(into: Accumulator | Vector) -> Sum:
    return into.changing() if isinstance(into, Accumulator) else Sum(native(into))
