"""MIFA (Gu, Huang, Zhang and Huang, NeurIPS 2021, arXiv 2106.04159): rounds that do not wait for the inactive, whose
memorised updates count instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from acefl.errors import one_of
from acefl.rules.ace import IncrementalACE
from acefl.rules.settings import WARMUPS, check_count, check_table
from acefl.table import Table
from acefl.types import Arrival, Rule, State, Vector


@dataclass(frozen=True)
class MIFA:
    """After every `buffer` arrivals, a step on the mean over all clients of their latest updates.

    A round is over when `buffer` clients have been active, whoever they are. With `buffer=1` this is ACE: what MIFA
    does per round, ACE does per arrival. `warmup="wait"` makes no step until everybody has reported once, as the paper
    assumes of its first round.
    """

    buffer: int = 10  # how many arrivals make a round
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"
    warmup: str = "wait"

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)
        check_table(self.table, self.home)
        one_of("warmup", self.warmup, WARMUPS)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        table = Table(clients, like, encoding=self.table, home=self.home)
        return RoundsOfMemoryRule(self.buffer, IncrementalACE([1.0] * clients, like, table, wait=self.warmup == "wait"))


class RoundsOfMemoryRule:
    """ACE's table and mean, asked once per round."""

    def __init__(self, buffer: int, memory: IncrementalACE) -> None:
        self._buffer = buffer
        self._memory = memory
        self.table = memory.table
        self._active = 0  # arrivals of this round
        self._taken = False

    @property
    def warming(self) -> bool:
        """True while nobody may get a second model because some client has not reported its first update."""
        return self._memory.warming

    def waits_for(self, client: int) -> bool:
        """Whether the model makes no step until this client reports."""
        return self._memory.waits_for(client)

    def absorb(self, arrival: Arrival) -> bool:
        self._active = 1 if self._taken else self._active + 1
        self._taken = False
        return self._memory.absorb(arrival) and self._active >= self._buffer

    def direction(self) -> Vector:
        self._taken = True
        return self._memory.direction()

    def grow(self, clients: int, weight: float = 1.0) -> None:
        """Make room for clients that were unknown at the start. Nobody waits for them; all count the same."""
        self._memory.grow(clients)

    def forget(self, client: int) -> None:
        """The client has left for good: its update no longer counts, and nobody waits for it."""
        self._memory.forget(client)

    def state_dict(self) -> State:
        return {"memory": self._memory.state_dict(), "active": self._active, "taken": self._taken}

    def load_state_dict(self, state: State) -> None:
        self._memory.load_state_dict(state["memory"])
        self._active, self._taken = int(state["active"]), bool(state["taken"])
