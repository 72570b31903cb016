"""The one loop: simulation, federation and test differ only in the fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from acefl.core.errors import NothingInFlight
from acefl.core.rule import Audience
from acefl.core.server import Server
from acefl.core.stop import Stop
from acefl.core.turns import Foresight
from acefl.core.types import Event, Step, Vector


class Fleet(Protocol):
    """Clients at work, simulated or real."""

    @property
    def now(self) -> float:
        """Virtual or wall-clock time since the start."""
        ...

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> Sequence[int] | None:
        """Send the model to every client that should start work now; copy it, since the server goes on changing it.

        `newcomers_only`: to none that was sent one since the last call without it, when the round began. Returns whom
        it was sent to, in that order; None from a fleet in which nobody is sent anything (the sampled clock).
        """
        ...

    def next(self) -> list[Event]:
        """What came in since the last call, waiting for it if need be. NothingInFlight: nothing ever will."""
        ...

    def versions_out(self) -> set[int]:
        """Versions of the model that updates may still come from."""
        ...


def run(server: Server, fleet: Fleet, stop: Stop, foresight: Foresight | None = None) -> Iterator[Step]:
    """Drive the server by what the fleet delivers, one Step per turn, until the budget is spent.

    Clients get their next model before the Step is handed out, so that they do not wait for whoever looks at it; once
    the budget is spent nobody gets one. A server that comes from a checkpoint goes on where it was.

    With `foresight`, turns that are known before they come and that nobody looks at are taken in one go, and give one
    Step. Nothing else depends on it, not even the last bit of the model.
    """
    over = stop.spent(server.accepted, server.version, fleet.now) >= 1.0
    if not over:
        dispatch(server, fleet)
    while not over:
        several = None if foresight is None else _several(server, fleet, foresight)
        if several is not None:
            yield several
            continue
        events = _next(server, fleet)
        spent = stop.spent(server.accepted, server.version, fleet.now)
        stepped = server.handle(events, min(spent, 1.0))
        step = Step(server.accepted, server.version, fleet.now, stepped)
        over = stop.spent(server.accepted, server.version, fleet.now) >= 1.0
        if not over:
            dispatch(server, fleet)
        yield step


def _several(server: Server, fleet: Fleet, foresight: Foresight) -> Step | None:
    """Turns in one go, if more than one is known and nobody looks at the run in between; else nothing happens."""
    if not server.takes_turns:
        return None
    before = server.accepted, server.version
    turns = foresight.fleet.ahead(lambda turns, time: foresight.room(before[0] + turns, before[1] + turns, time))
    if turns is None:
        return None
    sent = server.take(turns)
    foresight.fleet.resume(sent)
    if sent.held:
        dispatch(server, fleet)
    return Step(server.accepted, server.version, fleet.now, server.version > before[1])


def dispatch(server: Server, fleet: Fleet) -> None:
    """Give the current model to whoever the rule wants to work on it now."""
    audience = server.audience
    if audience is not Audience.NOBODY:
        sent = fleet.dispatch(server.model, server.version, newcomers_only=audience is Audience.NEWCOMERS)
        if sent:
            server.dispatched(sent)
    server.tidy(fleet.versions_out)


def _next(server: Server, fleet: Fleet) -> list[Event]:
    """What comes in next. Updates that a round lacks and nobody is working on (refused ones, say) are not waited for:
    the round is over, and that is all that happened."""
    try:
        return fleet.next()
    except NothingInFlight:
        if not _waits(server):
            raise
        server.give_up()
        if _waits(server):
            raise
        return []


def _waits(server: Server) -> bool:
    return server.audience is not Audience.EVERYBODY
