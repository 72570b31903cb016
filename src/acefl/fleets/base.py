"""What a fleet is: clients at work, simulated or real. Every member that is not abstract has a default that is right
for clients in virtual time that never join late."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from acefl.core.turns import Fits, Sent, Turns
from acefl.core.types import Arrival, Event, State, Vector


@dataclass(frozen=True, slots=True)
class Trip:
    """What a fleet knows of a task beside its result."""

    sent: float  # when the model went out
    uplink: int = 0  # bytes of the update as it travelled
    downlink: int = 0  # bytes of the model as it travelled


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that could not even become an arrival."""

    client: int
    trained_on: int
    reason: str
    trip: Trip


@dataclass(frozen=True, slots=True)
class Member:
    """A client as people know it."""

    name: str
    connected: bool


class Fleet(ABC):
    """Clients at work. A fleet calls nobody: what happens to it comes out of `next`."""

    virtual: bool = True  # whether time is simulated, so that the fleet can wait for whoever looks
    travels: bool = False  # whether `acknowledge` says how an update travelled
    loses: bool = False  # whether answers may be lost, so that arrivals alone do not say what was sent
    now: float = 0.0  # virtual or wall-clock time since the start
    on_send: Callable[..., None] | None = None  # told the clients' names, as for SendLog.note, before tasks go out

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many have been seen so far."""

    @property
    def at_start(self) -> int:
        """How many the server starts with; it hears of the others by `Joined`."""
        return self.clients

    @property
    @abstractmethod
    def uploads(self) -> list[int]:
        """How many updates have left each client, or may have: those under way, and those whose fate is unknown, too.

        Privacy accounting goes by it, so it must never be too low.
        """

    @abstractmethod
    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int] | None:
        """Send the model to every client that should start work now; copy it, since the server goes on changing it.

        `newcomers_only`: to none that was sent one since the last call without it, when the round began. Returns who
        was sent it; None: the fleet cannot tell.
        """

    @abstractmethod
    def next(self) -> list[Event]:
        """What came in since the last call, waiting for it if need be. NothingInFlight: nothing ever will."""

    @abstractmethod
    def versions_out(self) -> set[int]:
        """Versions of the model that updates may still come from."""

    def ahead(self, fits: Fits) -> Turns | None:
        """The turns that come next, as many as are known already and fit; None: `next` has to say. Who gets some hands
        them to the server, and what it sent to `resume`."""
        return None

    def resume(self, sent: Sent) -> None:
        """These turns have happened, the first of those that were ahead: as many as clients were sent a model, and one
        more if that client is held."""
        raise NotImplementedError

    def members(self) -> list[Member] | None:
        """Every client's name outside, and whether it is there; None: clients are numbers, and all there."""
        return None

    def mean_times(self) -> list[float] | None:
        """Every client's mean task time; None: nobody knows it before it is measured."""
        return None

    def acknowledge(self, arrival: Arrival, reason: str) -> Trip | None:
        """The server has accepted the arrival (empty reason) or refused it; how it travelled, if it did."""
        return None

    def known_finite(self, arrival: Arrival) -> bool:
        """Whether the fleet knows that all numbers of the update are finite; False: somebody has to look."""
        return False

    def refusals(self) -> list[Refusal]:
        """Answers refused since the last call before they reached the server."""
        return []

    def progressed(self, spent: float) -> bool:
        """This share of the budget is spent. True: somebody else may be sent work now."""
        return False

    def already_sent(self, tasks: Mapping[str, int]) -> None:  # noqa: B027  # nothing to do is a good default
        """How many tasks each client, by its name, was sent before the server was killed."""

    def close(self) -> None:  # noqa: B027
        """Let the clients go."""

    @abstractmethod
    def state_dict(self) -> State:
        """Who is at work on what, and since when, so that the run can be resumed."""
        ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Go on with the tasks that were under way."""
        ...
