"""Turns of the loop that are known before they come, to be taken in one go.

When a task will finish never depends on what it computes. So a simulated fleet knows who arrives next, and after that,
until somebody arrives whose update waits for a model that does not exist yet. Nothing that happens in between needs
the fleet: the server takes these arrivals in, one after another and exactly as if each had come by itself, and the
fleet hears afterwards what their clients were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from acefl.core.types import Vector

Fits = Callable[[int, float], bool]  # whether so many turns, of which the last is at this time, may be taken in one go
Room = Callable[[int, int, float], bool]  # whether nobody looks until so many arrivals, so many steps and this time


@dataclass(slots=True)
class Turns:
    """Arrivals in their order, one per turn: contiguous updates like the model, from clients that are known, and on a
    CPU of finite numbers.

    After each the model is sent to its client and to nobody else, unless the rule wants other.
    """

    clients: list[int]
    updates: list[Vector]
    trained_on: list[int]  # model versions the clients started from
    tasks: list[int]
    times: list[float]

    def __len__(self) -> int:
        return len(self.clients)

    def first(self, count: int) -> Turns:
        """So many of them."""
        clients, updates, trained_on = self.clients[:count], self.updates[:count], self.trained_on[:count]
        return Turns(clients, updates, trained_on, self.tasks[:count], self.times[:count])


class Sent(NamedTuple):
    """What the clients of some turns were sent."""

    versions: list[int]  # one per turn
    models: torch.Tensor  # row k: the model of version `versions[0]` + k
    held: bool  # whether one more turn was taken, after which its client was not sent the model at once


class Foreseen(Protocol):
    """A fleet that knows what comes."""

    def ahead(self, fits: Fits) -> Turns | None:
        """The turns that come next, as many as are known already and fit; None: `next` has to say. Who gets some hands
        them to the server, and what it sent to `resume`."""
        ...

    def resume(self, sent: Sent) -> None:
        """These turns have happened, the first of those that were ahead: as many as clients were sent a model, and one
        more if that client is held."""
        ...


class Foresight(NamedTuple):
    """What it takes to take turns in one go: who knows them, and how far nobody looks at the run."""

    fleet: Foreseen
    room: Room
