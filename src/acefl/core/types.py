"""What passes between a fleet, the loop and a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

Vector = torch.Tensor  # flat, one dtype, one device: the model and every update
State = dict[str, Any]  # tensors, numbers, strings, and lists and dicts of them: what safetensors and JSON can hold


@dataclass(frozen=True, slots=True)
class Arrival:
    """One client's finished work, as the server sees it.

    Args:
        client: Number of the client, from 0.
        update: A direction to subtract: a gradient, or w_start - w_end.
        trained_on: Model version the client started from.
        version: Model version when it arrived.
        task: Id of the dispatch it answers.
    """

    client: int
    update: Vector  # a direction to SUBTRACT: a gradient, or w_start - w_end
    trained_on: int  # model version the client started from
    version: int  # model version when it arrived
    task: int  # id of the dispatch it answers: makes arrivals idempotent

    @property
    def staleness(self) -> int:
        """How many server steps the model has moved on since the client received it."""
        return self.version - self.trained_on


@dataclass(frozen=True, slots=True)
class Lost:
    """A dispatch that will never be answered: its client dropped out, crashed or timed out.

    Args:
        client: Number of the client.
        task: Id of the dispatch.
    """

    client: int
    task: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client that was not at work has dropped out: it sends nothing until it is back and has been sent a model.

    Args:
        client: Number of the client.
    """

    client: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The federation now has this many clients."""

    clients: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """Changes that clients sent no longer add up: from now on each sends a whole update once."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Nobody was at work who could end the round, so it went on without those who were missing: only in a replay, since
    the loop finds out by itself."""


Event = Arrival | Lost | Left | Joined | Restarted | GaveUp  # what a fleet delivers


@dataclass(frozen=True, slots=True)
class Step:
    """What one turn of the loop did: the arrivals it took in, and where the run stands after it.

    Args:
        arrivals: Accepted so far.
        version: Server steps so far.
        time: Time of the fleet: virtual, or seconds.
        stepped: Whether the model moved in this turn.
    """

    arrivals: int  # accepted so far
    version: int  # server steps so far
    time: float
    stepped: bool


Metrics = Mapping[str, float]
