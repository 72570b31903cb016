"""Watching a run, simulated or real, without changing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from acefl.core.errors import require
from acefl.core.loop import Fleet
from acefl.core.rule import Method
from acefl.core.server import Server
from acefl.core.types import Arrival, State, Step
from acefl.runs.record import Events
from acefl.tasks.base import Task


class RunInProgress(Protocol):
    """What an observer may know of the run it watches: a simulation, or a federation of real clients."""

    config: dict[str, Any]
    method: Method
    server: Server
    events: Events

    @property
    def fleet(self) -> Fleet:
        """The clients at work, and their clock."""
        ...

    @property
    def task(self) -> Task | None:
        """None where the data are with the clients alone."""
        ...

    @property
    def samples(self) -> list[int] | None:
        """Every client's number of samples, as the rule was told at the start; None: nobody knew."""
        ...

    def mean_times(self) -> list[float]:
        """Every client's mean task time; of real clients, as measured so far."""
        ...

    def clients(self) -> list[dict[str, Any]]:
        """One row per client, with what the observers know of it."""
        ...


class Observer:
    """A base class that does nothing: an observer overrides what it needs.

    In a run with checkpoints `state_dict` and `load_state_dict` save what the observer must not forget in a crash.
    """

    each_turn: bool = True  # whether it has to hear of every turn by itself, which makes simulations slower

    def started(self, run: RunInProgress) -> None:
        """Called once, before anything happens. Keep no reference to the run but a weak one: the run holds you."""

    def arrived(self, arrival: Arrival, reason: str) -> None:
        """An arrival was accepted (empty reason) or refused; called before the rule takes it in."""

    def stepped(self, step: Step, server: Server) -> None:
        """A turn of the loop is over. `server.direction` is what the model last stepped on."""

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        """These clients were sent this version of the model."""

    def passed(self, clients: Sequence[int], versions: Sequence[int]) -> None:
        """These clients arrived one after another, each was accepted and then sent this version (the last one perhaps
        none): in place of `arrived` and `dispatched` for each, where nobody has to hear of every turn. `stepped`
        follows once for all."""

    def lost(self, client: int) -> None:
        """The client's work will not come: nobody waits for it any more."""

    def evaluated(self, row: dict[str, float]) -> None:
        """An evaluation was made; metrics added to the row are recorded with it."""

    def per_client(self) -> dict[str, list[float]]:
        """Columns of `run.clients`: a number per client. Clients that join a federation later may be missing."""
        return {}

    def state_dict(self) -> State:
        """What it must not forget in a crash; here nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Remember what was saved."""


def methods(observers: Sequence[Observer], name: str) -> list[Callable[..., Any]]:
    """The observers' methods of this name; one that is no `Observer` by its class may lack some."""
    return [getattr(observer, name) for observer in observers if hasattr(observer, name)]


def call_all(methods: list[Callable[..., Any]]) -> Callable[..., None] | None:
    """One call for all of them; None where there are none, so that nothing is called for nobody."""

    def call(*given: Any) -> None:
        for method in methods:
            method(*given)

    return call if methods else None


def names(observers: Sequence[Observer]) -> list[str]:
    """What a record calls the observers: their classes, which a run must be resumed with."""
    return [type(observer).__name__ for observer in observers]


def check_savable(observers: Sequence[Observer]) -> None:
    """Refuse, before a run with checkpoints begins, observers that could not be saved in one."""
    for observer in observers:
        known = hasattr(observer, "state_dict") and hasattr(observer, "load_state_dict")
        require(known, f"{type(observer).__name__} cannot be saved: an observer needs state_dict and load_state_dict")


def add_columns(clients: list[dict[str, Any]], observers: Sequence[Observer]) -> list[dict[str, Any]]:
    """The clients' rows with what the observers know of each; of who joined after them, not a number."""
    for columns in methods(observers, "per_client"):
        for name, values in columns().items():
            count = len(clients)
            require(
                len(values) <= count, f"per_client() gives {len(values)} numbers of {name}; allowed: {count}, or fewer"
            )
            for client, row in enumerate(clients):
                row[name] = values[client] if client < len(values) else math.nan
    return clients
