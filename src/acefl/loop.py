"""The one loop: simulation, federation and test differ only in the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from acefl.server import Server
from acefl.stop import Stop
from acefl.types import Arrival, Lost, Step, Vector


class Fleet(Protocol):
    """Clients at work, simulated or real."""

    @property
    def now(self) -> float:
        """Virtual or wall-clock time since the start."""
        ...

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> None:
        """Send the model to every client that should start work now; copy it, since the server goes on changing it."""
        ...

    def next(self) -> list[Arrival | Lost]:
        """What came in since the last call, waiting for it if need be. Raises NothingInFlight when nothing ever will."""
        ...


def run(server: Server, fleet: Fleet, stop: Stop) -> Iterator[Step]:
    """Drive the server by what the fleet delivers, one Step per turn, until the budget is spent."""
    fleet.dispatch(server.model, server.version, newcomers_only=server.warming)
    while True:
        stepped = server.handle(fleet.next())
        fleet.dispatch(server.model, server.version, newcomers_only=server.warming)
        step = Step(server.accepted, server.version, fleet.now, stepped)
        yield step
        if stop.progress(step) >= 1.0:
            return
