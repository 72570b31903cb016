"""The one loop: simulation, federation and test differ only in the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from acefl.errors import NothingInFlight
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
        """What came in since the last call, waiting for it if need be. NothingInFlight: nothing ever will."""
        ...


def run(server: Server, fleet: Fleet, stop: Stop) -> Iterator[Step]:
    """Drive the server by what the fleet delivers, one Step per turn, until the budget is spent.

    Clients get their next model before the Step is handed out, so that they do not wait for whoever looks at it; once
    the budget is spent nobody gets one. A server that comes from a checkpoint goes on where it was.
    """
    over = stop.progress(Step(server.accepted, server.version, fleet.now, False)) >= 1.0
    if not over:
        _dispatch(server, fleet)
    while not over:
        stepped = server.handle(_next(server, fleet))
        step = Step(server.accepted, server.version, fleet.now, stepped)
        over = stop.progress(step) >= 1.0
        if not over:
            _dispatch(server, fleet)
        yield step


def _dispatch(server: Server, fleet: Fleet) -> None:
    fleet.dispatch(server.model, server.version, newcomers_only=server.warming)


def _next(server: Server, fleet: Fleet) -> list[Arrival | Lost]:
    """What comes in next. First updates that nobody is working on (they were refused, say) are not waited for."""
    try:
        return fleet.next()
    except NothingInFlight:
        if not server.warming:
            raise
        server.stop_waiting()
        _dispatch(server, fleet)
        return fleet.next()
