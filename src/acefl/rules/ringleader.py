"""Ringleader ASGD (Maranjyan and Richtárik, ICLR 2026, arXiv 2509.22860): a table like ACE's whose rows stay young,
since it is filled and used in rounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from acefl.core.errors import require
from acefl.core.types import Arrival, State, Vector
from acefl.rules.base import Members, Method, Rule
from acefl.rules.client_means import ClientMeans


@dataclass(frozen=True)
class RingleaderASGD(Method):
    """Steps on the mean over clients of their mean gradients of the round; staleness is at most 2n - 2 steps.

    First collect until everybody has sent something: no step. Then one step per client, made when it comes for the
    first time since (the last one to come makes the first): what it brings is added to its row. What comes from clients
    that have had their step goes into the next round's table, so no work is lost. When all had theirs, the next table
    becomes the current one.

    Args:
        home: Where rows are: `memory`, `device` or the path of a file.
    """

    home: str | os.PathLike[str] = "memory"  # of a path, a second file beside it holds the next round's rows

    arrivals_per_step = None  # now more, now fewer

    def __post_init__(self) -> None:
        require(bool(str(self.home)), "home is empty; allowed: 'memory', 'device' or a path")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        second = self.home if self.home in ("memory", "device") else f"{os.fspath(self.home)}-next"
        tables = ClientMeans(clients, like, self.home), ClientMeans(clients, like, second)
        return RingleaderASGDRule(clients, *tables)


class RingleaderASGDRule(Rule):
    saved = ("_members", "_collecting", "_owed", "_due", "_opening")

    def __init__(self, clients: int, current: ClientMeans, following: ClientMeans) -> None:
        self._members = Members([1.0] * clients)
        self._tables = [current, following]  # the first is this round's; they change places
        self._swapped = False
        self._collecting = True
        self._owed: set[int] = set()  # who has not had its step yet, once everything is collected
        self._due = False
        self._opening = False  # whoever comes along with the last one is collected with it, in whatever order they come

    def absorb(self, arrival: Arrival) -> bool:
        if not self._collecting and not self._owed and not self._due:
            self._start_round()
        client = arrival.client
        self._members.absent.discard(client)
        current, following = self._tables
        if self._collecting:
            current.add(client, arrival.update)
            if self._members.all_in(current.counts.keys()):
                self._owed = current.counts.keys() - {client} - self._members.absent
                self._collecting, self._due, self._opening = False, True, True
        elif client in self._owed:
            current.add(client, arrival.update)
            if not self._opening:
                self._owed.remove(client)
            self._due = True
        else:
            following.add(client, arrival.update)
        return self._due

    def _start_round(self) -> None:
        self._swap()
        self._tables[1].clear()
        self._collecting = True

    def _swap(self) -> None:
        self._tables.reverse()
        self._swapped = not self._swapped

    def direction(self) -> Vector:
        return self._tables[0].mean()

    def clear(self) -> None:
        self._due = self._opening = False

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._members.join(clients)
        for table in self._tables:
            table.grow(clients)

    def leave(self, client: int) -> bool:
        """What it has sent for this round counts to the round's end."""
        return self.lost(client)

    def lost(self, client: int) -> bool:
        self._members.absent.add(client)
        self._owed.discard(client)
        return False

    def state_dict(self) -> State:
        """The two tables under fixed names, whichever is the current one: what has not changed is not saved again."""
        first, second = reversed(self._tables) if self._swapped else self._tables
        tables = [first.state_dict(), second.state_dict()]
        return {**super().state_dict(), "tables": tables, "swapped": self._swapped}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self._swapped:
            self._swap()
        for table, saved in zip(self._tables, state["tables"], strict=True):
            table.load_state_dict(saved)
        if state["swapped"]:
            self._swap()
