"""ACE: step on the mean of every client's latest update, at each arrival.

Whoever arrives, everybody counts: no client's data weighs more because its hardware is faster, so the participation
bias (the paper's term B) is zero by construction.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from acefl.core import kernels
from acefl.core.errors import one_of
from acefl.core.ranges import Choice, Range
from acefl.core.state import snapshot
from acefl.core.turns import Turns
from acefl.core.types import Arrival, State, Vector
from acefl.rules.base import Advanced, Audience, Members, Method, Rule, Upload
from acefl.rules.settings import WARMUPS, WEIGHTS, check_table, client_weights, empty_vector
from acefl.table import Accumulator, Table

VARIANTS = ("direct", "incremental", "client-held")


@dataclass(frozen=True)
class ACE(Method):
    """All-Client Engagement.

    `direct` is Algorithm 1 as printed, O(n d) per arrival, and the oracle of the other two. `incremental` keeps the
    table and a running sum, O(d) per arrival. `client-held` keeps no table: each client remembers its last gradient and
    sends the difference. `warmup="wait"` makes no step until all clients have reported once (Algorithm 1);
    `warmup="seen"` steps from the first arrival on, over the clients seen so far.

    Args:
        variant: `incremental`, `direct` or `client-held`.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
        weights: `uniform`, or by number of `samples`.
        warmup: `wait` or `seen`.
    """

    variant: str = "incremental"
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"
    weights: str = "uniform"
    warmup: str = "wait"

    def __post_init__(self) -> None:
        one_of("variant", self.variant, VARIANTS)
        check_table(self.table, self.home)
        one_of("weights", self.weights, WEIGHTS)
        one_of("warmup", self.warmup, WARMUPS)

    @property
    def uploads(self) -> Upload:
        return Upload.CHANGE if self.variant == "client-held" else Upload.UPDATE

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"warmup": Choice(("wait", "seen"))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        weights = client_weights(self.weights, clients, samples)
        if self.variant == "incremental":
            table = Table(clients, like, encoding=self.table, home=self.home)
            return IncrementalACE(weights, like, table, wait=self.warmup == "wait")
        if self.variant == "direct":
            return DirectACE(weights, like, wait=self.warmup == "wait")
        return ClientHeldACE(weights, like, wait=self.warmup == "wait")


class AllClientsRule(Rule):
    """Who has reported, and whether the first round is over: the same for all three variants."""

    saved: ClassVar[tuple[str, ...]] = ("_members", "_seen", "_seen_weight")

    def __init__(self, weights: list[float], like: Vector, *, wait: bool) -> None:
        self._members = Members(weights)
        self._wait = wait
        self._seen: set[int] = set()
        self._seen_weight = 0.0  # summed anew, in another order, it could differ in the last bit
        self._direction = empty_vector(like)

    @property
    def audience(self) -> Audience:
        return Audience.NEWCOMERS if self._warming else Audience.EVERYBODY

    @property
    def _warming(self) -> bool:
        """True while nobody may get a second model because some client has not reported its first gradient."""
        return self._wait and not self._members.all_in(self._seen)

    def _see(self, client: int) -> float:
        """Note that the client has reported; its weight."""
        weight = self._members.weights[client]
        if client not in self._seen:
            self._members.absent.discard(client)
            self._seen.add(client)
            self._seen_weight += weight
        return weight

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._members.join(clients, weight)

    def leave(self, client: int) -> bool:
        if client in self._seen:
            self._drop(client)
            self._seen.remove(client)
            self._seen_weight = sum(self._members.weights[c] for c in sorted(self._seen))
        self._members.absent.add(client)
        return False

    def lost(self, client: int) -> bool:
        if client not in self._seen:
            self._members.absent.add(client)
        return False

    def give_up(self) -> bool:
        self._members.absent.update(set(range(len(self._members))) - self._seen)
        return False

    def _drop(self, client: int) -> None:
        """Take the client's update out of the mean."""
        raise NotImplementedError


class IncrementalACE(AllClientsRule):
    """The table and a running sum: what an arrival costs does not depend on the number of clients."""

    saved = (*AllClientsRule.saved, "table", "_total")

    def __init__(self, weights: list[float], like: Vector, table: Table, *, wait: bool) -> None:
        super().__init__(weights, like, wait=wait)
        self.table = table
        self._total = Accumulator(like)

    def absorb(self, arrival: Arrival) -> bool:
        weight = self._see(arrival.client)
        self.table.settle(self._total, self._seen, self._members.weights)
        self.table.exchange(arrival.client, arrival.update, self._total, weight)
        return not self._warming

    def advance(self, arrival: Arrival, model: Vector, lr: float) -> bool | None:
        if type(self) is not IncrementalACE:  # a rule made of this one may absorb or step otherwise
            return None
        weight = self._see(arrival.client)
        self.table.settle(self._total, self._seen, self._members.weights)
        if self._warming:
            self.table.exchange(arrival.client, arrival.update, self._total, weight)
            return False
        self.table.exchange_and_step(arrival.client, arrival.update, self._total, weight, model, lr / self._seen_weight)
        return True

    def advance_many(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced | None:
        exact = type(self) is IncrementalACE  # a rule made of this one may step otherwise
        if not exact or self._warming or not self.table.collects(self._total, model):
            return None
        with self.table.collected(self._total, model, models) as step:
            for client, update in zip(turns.clients, turns.updates, strict=True):
                self.table.exchange(client, update, self._total, self._see(client))
                step(lr / self._seen_weight, 1.0)
        return Advanced(list(range(version + 1, version + 1 + len(turns))))

    def direction(self) -> Vector:
        return torch.mul(self._total.value, 1.0 / self._seen_weight, out=self._direction)

    def join(self, clients: int, weight: float = 1.0) -> None:
        super().join(clients, weight)
        self.table.grow(clients)

    def _drop(self, client: int) -> None:
        self.table.add_row(client, self._total, -self._members.weights[client])
        self.table.forget(client)


class DirectACE(AllClientsRule):
    """Algorithm 1 as printed: average all rows again at every arrival. Slow on purpose; the others must agree."""

    def __init__(self, weights: list[float], like: Vector, *, wait: bool) -> None:
        super().__init__(weights, like, wait=wait)
        self._rows = torch.zeros(len(weights), like.numel(), dtype=torch.float32, device=like.device)

    def absorb(self, arrival: Arrival) -> bool:
        self._see(arrival.client)
        self._rows[arrival.client] = arrival.update
        return not self._warming

    def direction(self) -> Vector:
        weights = torch.zeros(len(self._members), dtype=torch.float32)
        for client in self._seen:
            weights[client] = self._members.weights[client]
        torch.mv(self._rows.T, (weights / weights.sum()).to(self._rows.device), out=self._direction)
        return self._direction

    def join(self, clients: int, weight: float = 1.0) -> None:
        added = clients - len(self._members)
        super().join(clients, weight)
        self._rows = torch.cat((self._rows, self._rows.new_zeros(added, self._rows.shape[1])))

    def _drop(self, client: int) -> None:
        self._rows[client] = 0.0

    def state_dict(self) -> State:
        return {**super().state_dict(), "rows": self._rows.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._rows = state["rows"].to(self._direction.device).clone()  # there may be more clients than at the start


class ClientHeldACE(AllClientsRule):
    """The paper's incremental algorithm: clients send differences, the server keeps only their running sum, O(d)."""

    uploads = Upload.CHANGE
    saved = (*AllClientsRule.saved, "_total")

    def __init__(self, weights: list[float], like: Vector, *, wait: bool) -> None:
        super().__init__(weights, like, wait=wait)
        self._total = torch.zeros_like(like, dtype=torch.float64)

    def absorb(self, arrival: Arrival) -> bool:
        weight = self._see(arrival.client)
        self._total.add_(arrival.update, alpha=weight)
        return not self._warming

    def direction(self) -> Vector:
        return self._direction.copy_(self._total).mul_(1.0 / self._seen_weight)

    def leave(self, client: int) -> bool:
        """Without a table the server cannot subtract what a client sent, so its last gradient stays in the sum."""
        return self.lost(client)

    def restart(self) -> None:
        """Start the sum anew: from now on every client's next update is its whole gradient again."""
        self._total.zero_()
        self._seen.clear()
        self._seen_weight = 0.0


class ClientMemory:
    """The clients' side of `client-held`: keeps each client's last gradient and turns the next into a difference.

    A difference that is not finite is refused by the server, whose sum then holds the gradient before: so does this.
    """

    def __init__(self) -> None:
        self._last: dict[int, Vector] = {}
        self._visits: dict[int, int] = {}

    def difference(self, client: int, gradient: Vector) -> Vector:
        last = self._last.get(client)
        change = gradient if last is None else gradient - last
        if change.device.type != "cpu" or kernels.is_finite(change):  # on a GPU nobody looks, and nothing is refused
            self._last[client] = gradient.clone()
            self._visits[client] = self._visits.get(client, 0) + 1
        return change

    def state_dict(self) -> State:
        names = {f"{client}@{visit}": client for client, visit in self._visits.items()}
        return {"last": snapshot(names, lambda name: self._last[names[name]])}

    def load_state_dict(self, state: State) -> None:
        self._last, self._visits = {}, {}
        for name, last in state["last"].items():
            client, visit = map(int, name.split("@"))
            self._last[client], self._visits[client] = last.clone(), visit
