"""Ringleader ASGD (Maranjyan and Richtárik, ICLR 2026, arXiv 2509.22860): a table like ACE's whose rows stay young,
since it is filled and used in rounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from acefl.errors import require
from acefl.rules.client_means import ClientMeans
from acefl.types import Arrival, Rule, State, Vector


@dataclass(frozen=True)
class RingleaderASGD:
    """Steps on the mean over clients of their mean gradients of the round; staleness is at most 2n - 2 steps.

    First collect until everybody has sent something: no step. Then one step per client, made when it comes for the
    first time since (the last one to come makes the first): what it brings is added to its row. What comes from clients
    that have had their step goes into the next round's table, so no work is lost. When all had theirs, the next table
    becomes the current one.
    """

    home: str | os.PathLike[str] = "memory"  # of a path, a second file beside it holds the next round's rows

    arrivals_per_step = None  # now more, now fewer

    def __post_init__(self) -> None:
        require(bool(str(self.home)), "home is empty; allowed: 'memory', 'device' or a path")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        second = self.home if self.home in ("memory", "device") else f"{os.fspath(self.home)}-next"
        tables = ClientMeans(clients, like, self.home), ClientMeans(clients, like, second)
        return TwoPhaseRule(clients, *tables)


class TwoPhaseRule:
    needs_everybody = True  # so nobody waits for a client whose work is lost, until it reports again

    def __init__(self, clients: int, current: ClientMeans, following: ClientMeans) -> None:
        self._tables = [current, following]  # the first is this round's; they change places
        self._swapped = False
        self._clients = clients
        self._gone: set[int] = set()  # whom nobody waits for
        self._owed: set[int] | None = None  # who has not had its step yet; None while collecting
        self._due = self._taken = False
        self._opening = False  # whoever comes along with the last one is collected with it, in whatever order they come

    def absorb(self, arrival: Arrival) -> bool:
        if self._taken:
            self._due = self._opening = self._taken = False
        if self._owed == set() and not self._due:
            self._start_round()
        client = arrival.client
        self._gone.discard(client)
        current, following = self._tables
        if self._owed is None:
            current.add(client, arrival.update)
            if self._everybody_came():
                self._owed = current.counts.keys() - {client} - self._gone
                self._due = self._opening = True
        elif client in self._owed:
            current.add(client, arrival.update)
            if not self._opening:
                self._owed.remove(client)
            self._due = True
        else:
            following.add(client, arrival.update)
        return self._due

    def _everybody_came(self) -> bool:
        came = self._tables[0].counts.keys()
        return len(came) + len(self._gone - came) == self._clients

    def _start_round(self) -> None:
        self._tables.reverse()
        self._swapped = not self._swapped
        self._tables[1].clear()
        self._owed = None

    def direction(self) -> Vector:
        self._taken = True
        return self._tables[0].mean()

    def grow(self, clients: int, weight: float = 1.0) -> None:
        """Make room for clients that were unknown at the start. Nobody waits for them until they have come once."""
        self._gone.update(range(self._clients, clients))
        self._clients = clients
        for table in self._tables:
            table.grow(clients)

    def forget(self, client: int) -> None:
        """The client has left, or its work is lost: nobody waits for it until it reports again.

        What it has sent for this round counts to the round's end.
        """
        self._gone.add(client)
        if self._owed:
            self._owed.discard(client)

    def state_dict(self) -> State:
        first, second = reversed(self._tables) if self._swapped else self._tables
        return {
            "tables": [first.state_dict(), second.state_dict()],
            "swapped": self._swapped,
            "clients": self._clients,
            "gone": sorted(self._gone),
            "owed": None if self._owed is None else sorted(self._owed),
            "due": self._due,
            "opening": self._opening,
            "taken": self._taken,
        }

    def load_state_dict(self, state: State) -> None:
        if self._swapped:
            self._tables.reverse()
        for table, saved in zip(self._tables, state["tables"], strict=True):
            table.load_state_dict(saved)
        self._swapped = bool(state["swapped"])
        if self._swapped:
            self._tables.reverse()
        self._clients, self._gone = int(state["clients"]), set(state["gone"])
        self._owed = None if state["owed"] is None else set(state["owed"])
        self._due, self._opening, self._taken = (bool(state[name]) for name in ("due", "opening", "taken"))
