"""The contract of an aggregation method: settings (`Method`) that build a `Rule`.

Every member that is not abstract has a default that is right for a rule without rounds and without memory of clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from acefl.core.optimizers import Optimizer
from acefl.core.ranges import Choice, Range
from acefl.core.state import Stateful
from acefl.core.turns import Turns
from acefl.core.types import Arrival, Vector


class Audience(Enum):
    """Who is sent the current model."""

    EVERYBODY = "everybody"
    NEWCOMERS = "newcomers"  # only clients that were sent none in this round: the others have reported and wait
    NOBODY = "nobody"


class Upload(Enum):
    """What clients send."""

    UPDATE = "update"  # a gradient, or how far local training moved the model
    CHANGE = "change"  # of that since the client's last upload
    MODEL = "model"  # the client's own model; the rule is given how far it lies from the current one


class Advanced(NamedTuple):
    """How a rule took in turns in one go."""

    versions: list[int]  # of the model, after each turn
    direction: Vector | None = None  # of the last step; None: there was none, or `direction()` still gives it


class Rule(Stateful, ABC):
    """An aggregation method at work. No clock, random numbers, I/O or model inside.

    The server absorbs what came in, and if any answer was True it asks for the direction, steps, and calls `clear`.
    `absorb` and `direction` are two calls because a server that falls behind drains its queue, absorbs what is waiting
    and steps once. `saved` names the attributes that make up the rule's state.
    """

    optimizer: Optimizer | None = None  # the server optimizer that the method prescribes
    uploads: Upload = Upload.UPDATE  # what it is given

    @abstractmethod
    def absorb(self, arrival: Arrival) -> bool:
        """Take the arrival in; True when the model should step now."""

    @abstractmethod
    def direction(self) -> Vector:
        """What the server subtracts, before lr. Borrowed: read it before the next `absorb`, never write to it."""

    def clear(self) -> None:
        """The model has stepped: start collecting anew. What the last direction was read from stays readable."""

    def join(self, clients: int, weight: float = 1.0) -> None:
        """The federation now has this many clients; the new ones weigh `weight`. Nobody waits for them."""

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        """These clients were sent this version of the model."""

    def leave(self, client: int) -> bool:
        """The client has left for good: it no longer counts, and nobody waits for it. True: a step is due."""
        return False

    def lost(self, client: int) -> bool:
        """The client's work will not come: a round need not wait for it. True: a step is due."""
        return False

    def give_up(self) -> bool:
        """Nobody is at work who could end the round: continue without those who are missing. True: a step is due."""
        return False

    def restart(self) -> None:
        """Some client has lost what its changes are changes of: from now on everybody sends a whole update once."""

    @property
    def audience(self) -> Audience:
        """Who may be sent a model now."""
        return Audience.EVERYBODY

    @property
    def active(self) -> frozenset[int] | None:
        """The clients whose updates make up a step; None: whoever comes."""
        return None

    def rate(self, lr: float) -> float:
        """The learning rate of the step that is due, where it depends on staleness."""
        return lr

    def advance(self, arrival: Arrival, model: Vector, lr: float) -> bool | None:
        """`absorb`, then model -= lr * direction, in one pass over memory; False: absorbed, but no step was due.

        None: the rule has no such pass, and nothing was done.
        """
        return None

    def advance_many(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced | None:
        """`absorb`, the step, `clear` and `dispatched` for one turn after another, bit for bit, at less cost.

        The model begins at this version and is changed in place. Row k of `models` becomes the model that has the
        version after the first turn, plus k. None: the rule has no such pass, or not now, and nothing was done; it has
        one only while every client may be sent a model as soon as it has arrived.
        """
        return None


class Method(ABC):
    """A method's settings, a frozen dataclass: they name it in records and tables, and build its rule."""

    @abstractmethod
    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        """A rule for so many clients and a model like this; `samples` are the clients' numbers of samples."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The server optimizer that the method prescribes."""
        return None

    @property
    def uploads(self) -> Upload:
        """What clients send."""
        return Upload.UPDATE

    @property
    def rounds(self) -> bool:
        """Whether nobody gets a second model until the round is over."""
        return False

    @property
    def arrivals_per_step(self) -> int | None:
        """How many arrivals make a step; None: that varies."""
        return 1

    @property
    def tasks_per_step(self) -> float:
        """How many tasks of one client a step may take at most: for who wonders whether one will ever come."""
        return 1

    @property
    def cache_is_history(self) -> bool:
        """Whether the method's paper takes cached updates as fixed where it speaks of noise and bias."""
        return False

    @property
    def order_matters(self) -> bool:
        """Whether a step depends on the order of what came in one turn."""
        return False

    @property
    def inner(self) -> Method:
        """The method that this one works on, such as the one that is clipped; else itself."""
        return self

    @property
    def cohort(self) -> int | None:
        """How many clients are drawn for a round; None: all."""
        return None

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        """Settings that matter, and where to look for them: for searches over all settings of a method.

        The learning rate, `tau` and `buffer` are searched in any case. Name few: all share one budget.
        """
        return {}


class Buffered(Method):
    """A method that steps once `buffer` updates are in."""

    buffer: int

    @property
    def arrivals_per_step(self) -> int | None:
        return self.buffer

    @property
    def tasks_per_step(self) -> float:
        return self.buffer
