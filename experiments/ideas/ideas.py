"""Ideas of our own about ACE's and ACED's weak sides, outside the library, in one file.

ACE's rows are up to a round trip of the slowest client old; ACED leaves slow clients out. Each class here is settings
as `acefl` takes them by name: `acefl compare --method experiments.ideas.ideas:FadingACED`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.errors import require
from acefl.rules.settings import check_count
from acefl.table import Accumulator, Table
from acefl.types import Arrival, Rule, State, Vector


class _Rows:
    """Every client's latest update, its model version, and the first round: what all ideas share."""

    def __init__(self, clients: int, like: Vector) -> None:
        self.table = Table(clients, like, home="device" if like.is_cuda else "memory")
        self.like = torch.zeros_like(like, dtype=torch.float32)
        self.clients = clients
        self.trained_on: dict[int, int] = {}
        self.now = 0
        self.gone: set[int] = set()

    @property
    def warming(self) -> bool:
        """As in Algorithm 1: nobody gets a second model until all have reported."""
        return len(self.trained_on) + len(self.gone) < self.clients

    def note(self, arrival: Arrival) -> None:
        self.trained_on[arrival.client] = max(arrival.trained_on, self.trained_on.get(arrival.client, -1))
        self.now = max(self.now, arrival.version)
        self.gone.discard(arrival.client)

    def forget(self, client: int) -> None:
        self.trained_on.pop(client, None)
        self.gone.add(client)

    def ages(self) -> dict[int, int]:
        """Steps since the model each row was computed on."""
        return {client: self.now - version for client, version in sorted(self.trained_on.items())}

    def state_dict(self) -> State:
        return {
            "table": self.table.state_dict(),
            "trained_on": [[client, version] for client, version in sorted(self.trained_on.items())],
            "now": self.now,
            "gone": sorted(self.gone),
        }

    def load_state_dict(self, state: State) -> None:
        self.table.load_state_dict(state["table"])
        self.trained_on = {int(client): int(version) for client, version in state["trained_on"]}
        self.now, self.gone = int(state["now"]), set(state["gone"])


@dataclass(frozen=True)
class DampedACE:
    """The all-client mean, its step shortened when the table is older than usual.

    The mean is scaled by min(1, usual / age): age is the table's mean age now, usual its running mean so far. A rate
    that is safe at the usual age stays safe when half of the clients fall silent.
    """

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return DampedRule(clients, like)


class DampedRule:
    def __init__(self, clients: int, like: Vector) -> None:
        self._rows, self._total = _Rows(clients, like), Accumulator(like)
        self._age_sum, self._steps = 0.0, 0
        self._at = -1

    @property
    def warming(self) -> bool:
        return self._rows.warming

    def absorb(self, arrival: Arrival) -> bool:
        if arrival.version > self._at:  # the step before is over: its age now counts as usual
            self._count()
            self._at = arrival.version
        self._rows.table.exchange(arrival.client, arrival.update, self._total, 1.0)
        self._rows.note(arrival)
        return not self.warming

    def _age(self) -> float:
        ages = self._rows.ages()
        return sum(ages.values()) / max(1, len(ages))

    def _count(self) -> None:
        if self._rows.trained_on and not self.warming:
            self._age_sum += self._age()
            self._steps += 1

    def direction(self) -> Vector:
        usual = self._age_sum / self._steps if self._steps else math.inf
        damping = min(1.0, (1.0 + usual) / (1.0 + self._age()))
        return self._total.value * (damping / max(1, len(self._rows.trained_on)))

    def forget(self, client: int) -> None:
        if client in self._rows.trained_on:
            self._rows.table.add_row(client, self._total, -1.0)
            self._rows.table.forget(client)
        self._rows.forget(client)

    def state_dict(self) -> State:
        own = {"total": self._total.state_dict(), "age_sum": self._age_sum, "steps": self._steps, "at": self._at}
        return {"rows": self._rows.state_dict(), **own}

    def load_state_dict(self, state: State) -> None:
        self._rows.load_state_dict(state["rows"])
        self._total.load_state_dict(state["total"])
        self._age_sum, self._steps, self._at = float(state["age_sum"]), int(state["steps"]), int(state["at"])


@dataclass(frozen=True)
class FadingACED:
    """ACED whose left-out clients keep a weight that fades: 1 up to an age of `tau` steps, tau / age beyond it.

    ACED forgets a client at tau, and the bias is back; ACE never does, and steps on what may be very old.
    """

    tau: int = 50

    def __post_init__(self) -> None:
        check_count("tau", self.tau)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FadingRule(self.tau, clients, like)


class FadingRule:
    def __init__(self, tau: int, clients: int, like: Vector) -> None:
        self._tau, self._rows = tau, _Rows(clients, like)
        self._matrix = torch.zeros(clients, like.numel(), dtype=torch.float32, device=like.device)

    @property
    def warming(self) -> bool:
        return self._rows.warming

    def absorb(self, arrival: Arrival) -> bool:
        self._matrix[arrival.client] = arrival.update
        self._rows.note(arrival)
        return not self.warming

    def direction(self) -> Vector:
        weights = torch.zeros(len(self._matrix))
        for client, age in self._rows.ages().items():
            weights[client] = min(1.0, self._tau / max(1, age))
        return torch.mv(self._matrix.T, (weights / weights.sum()).to(self._matrix.device))

    def forget(self, client: int) -> None:
        self._rows.forget(client)

    def state_dict(self) -> State:
        return {"rows": self._rows.state_dict(), "matrix": self._matrix.clone()}

    def load_state_dict(self, state: State) -> None:
        self._rows.load_state_dict(state["rows"])
        self._matrix = state["matrix"].to(self._matrix.device).clone()


@dataclass(frozen=True)
class MomentumACE:
    """Rows that are momentum-corrected: a client's row moves to `blend` of its new update and the rest of its old row.

    A row is then less noisy and older; STORM without a second gradient.
    """

    blend: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.blend <= 1, f"blend is {self.blend}; allowed: above 0, up to 1")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return MomentumRule(self.blend, clients, like)


class MomentumRule:
    def __init__(self, blend: float, clients: int, like: Vector) -> None:
        self._blend, self._rows, self._total = blend, _Rows(clients, like), Accumulator(like)

    @property
    def warming(self) -> bool:
        return self._rows.warming

    def absorb(self, arrival: Arrival) -> bool:
        row = arrival.update
        if arrival.client in self._rows.trained_on:
            row = torch.lerp(self._rows.table.row(arrival.client), row.to(torch.float32), self._blend)
        self._rows.table.exchange(arrival.client, row, self._total, 1.0)
        self._rows.note(arrival)
        return not self.warming

    def direction(self) -> Vector:
        return self._total.value / max(1, len(self._rows.trained_on))

    def forget(self, client: int) -> None:
        if client in self._rows.trained_on:
            self._rows.table.add_row(client, self._total, -1.0)
            self._rows.table.forget(client)
        self._rows.forget(client)

    def state_dict(self) -> State:
        return {"rows": self._rows.state_dict(), "total": self._total.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._rows.load_state_dict(state["rows"])
        self._total.load_state_dict(state["total"])
