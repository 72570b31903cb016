"""Ideas of our own about ACE's and ACED's weak sides, outside the library, in one file.

ACE's rows are up to a round trip of the slowest client old; ACED leaves slow clients out. Each class here is settings
as `acefl` takes them by name: `acefl compare --method experiments.ideas.ideas:FadingACED`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from acefl.core.errors import require
from acefl.core.rule import Audience, Method, Rule
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Members
from acefl.rules.settings import check_count
from acefl.table import Accumulator, Table


class Reports(Rule):
    """Who has reported, on which model version, and the first round: what all ideas share."""

    saved: ClassVar[tuple[str, ...]] = ("trained_on", "now", "members")

    def __init__(self, clients: int) -> None:
        self.members = Members([1.0] * clients)
        self.trained_on: dict[int, int] = {}
        self.now = 0

    @property
    def warming(self) -> bool:
        """As in Algorithm 1: nobody gets a second model until all have reported."""
        return not self.members.all_in(self.trained_on.keys())

    @property
    def audience(self) -> Audience:
        return Audience.NEWCOMERS if self.warming else Audience.EVERYBODY

    def note(self, arrival: Arrival) -> None:
        self.trained_on[arrival.client] = max(arrival.trained_on, self.trained_on.get(arrival.client, -1))
        self.now = max(self.now, arrival.version)
        self.members.absent.discard(arrival.client)

    def join(self, clients: int, weight: float = 1.0) -> None:
        self.members.join(clients, weight)

    def leave(self, client: int) -> bool:
        self.trained_on.pop(client, None)
        return self.lost(client)

    def lost(self, client: int) -> bool:
        if client not in self.trained_on:
            self.members.absent.add(client)
        return False

    def give_up(self) -> bool:
        self.members.absent.update(set(range(len(self.members))) - self.trained_on.keys())
        return False

    def ages(self) -> dict[int, int]:
        """Steps since the model each row was computed on."""
        return {client: self.now - version for client, version in sorted(self.trained_on.items())}


class Rows(Reports):
    """Every client's latest update, in a table with a running sum."""

    saved: ClassVar[tuple[str, ...]] = (*Reports.saved, "table", "total")

    def __init__(self, clients: int, like: Vector) -> None:
        super().__init__(clients)
        self.table = Table(clients, like, home="device" if like.is_cuda else "memory")
        self.total = Accumulator(like)

    def join(self, clients: int, weight: float = 1.0) -> None:
        super().join(clients, weight)
        self.table.grow(clients)

    def leave(self, client: int) -> bool:
        if client in self.trained_on:
            self.table.add_row(client, self.total, -1.0)
            self.table.forget(client)
        return super().leave(client)


@dataclass(frozen=True)
class DampedACE(Method):
    """The all-client mean, its step shortened when the table is older than usual.

    The mean is scaled by min(1, usual / age): age is the table's mean age now, usual its running mean so far. A rate
    that is safe at the usual age stays safe when half of the clients fall silent.
    """

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return DampedRule(clients, like)


class DampedRule(Rows):
    saved = (*Rows.saved, "_age_sum", "_steps", "_at")

    def __init__(self, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._age_sum, self._steps = 0.0, 0
        self._at = -1

    def absorb(self, arrival: Arrival) -> bool:
        if arrival.version > self._at:  # the step before is over: its age now counts as usual
            self._count()
            self._at = arrival.version
        self.table.exchange(arrival.client, arrival.update, self.total, 1.0)
        self.note(arrival)
        return not self.warming

    def _age(self) -> float:
        ages = self.ages()
        return sum(ages.values()) / max(1, len(ages))

    def _count(self) -> None:
        if self.trained_on and not self.warming:
            self._age_sum += self._age()
            self._steps += 1

    def direction(self) -> Vector:
        usual = self._age_sum / self._steps if self._steps else math.inf
        damping = min(1.0, (1.0 + usual) / (1.0 + self._age()))
        return self.total.value * (damping / max(1, len(self.trained_on)))


@dataclass(frozen=True)
class FadingACED(Method):
    """ACED whose left-out clients keep a weight that fades: 1 up to an age of `tau` steps, tau / age beyond it.

    ACED forgets a client at tau, and the bias is back; ACE never does, and steps on what may be very old.
    """

    tau: int = 50

    def __post_init__(self) -> None:
        check_count("tau", self.tau)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FadingRule(self.tau, clients, like)


class FadingRule(Rows):
    def __init__(self, tau: int, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._tau = tau

    def absorb(self, arrival: Arrival) -> bool:
        self.table.exchange(arrival.client, arrival.update, self.total, 0.0)
        self.note(arrival)
        return not self.warming

    def direction(self) -> Vector:
        weights = {client: min(1.0, self._tau / max(1, age)) for client, age in self.ages().items()}
        weighted = Accumulator(self.total.value)
        for client, weight in weights.items():
            self.table.add_row(client, weighted, weight)
        return weighted.value / sum(weights.values())


@dataclass(frozen=True)
class MomentumACE(Method):
    """Rows that are momentum-corrected: a client's row moves to `blend` of its new update and the rest of its old row.

    A row is then less noisy and older; STORM without a second gradient.
    """

    blend: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.blend <= 1, f"blend is {self.blend}; allowed: above 0, up to 1")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return MomentumRule(self.blend, clients, like)


class MomentumRule(Rows):
    def __init__(self, blend: float, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._blend = blend

    def absorb(self, arrival: Arrival) -> bool:
        row = arrival.update
        if arrival.client in self.trained_on:
            row = torch.lerp(self.table.row(arrival.client), row.to(torch.float32), self._blend)
        self.table.exchange(arrival.client, row, self.total, 1.0)
        self.note(arrival)
        return not self.warming

    def direction(self) -> Vector:
        return self.total.value / max(1, len(self.trained_on))
