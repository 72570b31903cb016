"""ACED: ACE without the clients whose information is too old.

The paper sums over the whole active set at each step, O(n_t d). Clients leave the active set in the order of their
dispatch, so a running sum and a heap ordered by dispatch give the same vector in O(d) per arrival.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from acefl.core.errors import one_of
from acefl.core.ranges import Choice, Range
from acefl.core.turns import Turns
from acefl.core.types import Arrival, State, Vector
from acefl.rules.base import Advanced, Audience, Members, Method, Rule
from acefl.rules.settings import WARMUPS, WEIGHTS, check_count, check_table, client_weights, empty_vector
from acefl.table import Accumulator, Table

FRESHNESS = ("dispatch", "model")
_NEVER = -1
_SLACK = 64  # outdated entries of the queue that are not worth a clean-up


@dataclass(frozen=True)
class ACED(Method):
    """All-Client Engagement, Delay-aware: the mean over A(t), the clients that are fresh enough at step t.

    `freshness="dispatch"` is the algorithm line by line: a client counts until `tau` steps after it was last sent a
    model, and the arriving client's clock is reset only after the step it triggers. The loop tells the rule who was
    sent one; a rule that is never told (driven by hand, or under the sampled clock) takes it that whoever arrives is
    sent the next model at once. `freshness="model"` is the paper's notation table: a row counts while the model it was
    computed on is at most `tau` steps old.

    Args:
        tau: For how many server steps a client counts; the paper's tau_algo.
        freshness: `dispatch` or `model`: what `tau` is counted from.
        table: How rows are stored: `fp32`, `bf16`, `int8` or `int4`.
        home: Where rows are: `memory`, `device` or the path of a file.
        weights: `uniform`, or by number of `samples`.
        warmup: `wait` for everybody's first update, or step over the clients `seen` so far.
    """

    tau: int = 50  # the paper's tau_algo, in server steps
    freshness: str = "dispatch"
    table: str = "fp32"
    home: str | os.PathLike[str] = "memory"
    weights: str = "uniform"
    warmup: str = "wait"

    def __post_init__(self) -> None:
        check_count("tau", self.tau)
        one_of("freshness", self.freshness, FRESHNESS)
        check_table(self.table, self.home)
        one_of("weights", self.weights, WEIGHTS)
        one_of("warmup", self.warmup, WARMUPS)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"warmup": Choice(("wait", "seen"))}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        table = Table(clients, like, encoding=self.table, home=self.home)
        return ACEDRule(self, client_weights(self.weights, clients, samples), like, table)


class ACEDRule(Rule):
    saved = ("_start", "_active", "_active_weight", "_restarting", "_is_told", "_seen", "_members", "table", "_total")

    def __init__(self, settings: ACED, weights: list[float], like: Vector, table: Table) -> None:
        self.tau = settings.tau
        self._restarts_on_dispatch = settings.freshness == "dispatch"
        self._wait = settings.warmup == "wait"
        self._members = Members(weights)
        self.table = table
        self._total = Accumulator(like)
        self._direction = empty_vector(like)
        self._start = [_NEVER] * len(weights)  # the paper's t_start
        self._active: set[int] = set()
        self._active_weight = 0.0
        self._queue: list[tuple[int, int]] = []  # (start, client); an entry whose start is outdated is skipped
        self._restarting: list[list[int]] = []  # [version it was or will be sent, client], since the last arrival
        self._is_told = False  # by the loop, who was sent a model
        self._seen: set[int] = set()

    @property
    def audience(self) -> Audience:
        return Audience.NEWCOMERS if self._warming else Audience.EVERYBODY

    @property
    def _warming(self) -> bool:
        """True while nobody may get a second model because some client has not reported its first gradient."""
        return self._wait and not self._members.all_in(self._seen)

    @property
    def active(self) -> frozenset[int]:
        """A(t): the clients whose rows make up the direction."""
        return frozenset(self._active)

    def absorb(self, arrival: Arrival) -> bool:
        self._bring_up_to_date(arrival.version)
        self._take(arrival.client, arrival.update, arrival.trained_on, arrival.version)
        self._restart_later(arrival.client, arrival.version)
        return not self._warming

    def advance(self, arrival: Arrival, model: Vector, lr: float) -> bool | None:
        """Of a long vector, whoever counts before and after is exchanged in the pass that steps."""
        if type(self) is not ACEDRule or not self._total.long:  # a rule made of this one may step otherwise
            return None
        client, now = arrival.client, arrival.version
        self._bring_up_to_date(now)
        if self._warming or client not in self._active or now - arrival.trained_on > self.tau:
            self._take(client, arrival.update, arrival.trained_on, now)
            if self._active and not self._warming:
                model.sub_(self._total.value, alpha=lr / self._active_weight)
        else:
            weight, rate = self._members.weights[client], lr / self._active_weight
            self.table.exchange_and_step(client, arrival.update, self._total, weight, model, rate)
            self._set_start(client, arrival.trained_on)
        self._restart_later(client, now)
        return not self._warming

    def _bring_up_to_date(self, now: int) -> None:
        """A(t) as it is before an arrival."""
        self._restart_dispatched(now)
        self._expire(now)
        self.table.settle(self._total, self._active, self._members.weights)

    def _restart_later(self, client: int, now: int) -> None:
        if self._restarts_on_dispatch and not self._is_told:
            self._restarting.append([now + 1, client])

    def _take(self, client: int, update: Vector, trained_on: int, now: int) -> None:
        self._members.absent.discard(client)
        self._seen.add(client)
        fresh = now - trained_on <= self.tau
        if client in self._active and not fresh:
            self._deactivate(client)
        if client in self._active:
            self.table.exchange(client, update, self._total, self._members.weights[client])
        else:
            self.table.exchange(client, update, self._total, 0.0)
            if fresh:
                self._activate(client)
        self._set_start(client, trained_on)

    def advance_many(
        self, turns: Turns, version: int, model: Vector, lr: float, models: torch.Tensor
    ) -> Advanced | None:
        exact = type(self) is ACEDRule  # a rule made of this one may step otherwise
        if not exact or self._warming or not self.table.collects(self._total, model):
            return None
        first = version
        with self.table.collected(self._total, model, models) as step:
            for client, update, trained_on in zip(turns.clients, turns.updates, turns.trained_on, strict=True):
                self._restart_dispatched(version)
                self._expire(version)
                self._take(client, update, trained_on, version)
                self._restart_later(client, version)
                step(lr, 1.0 / self._active_weight if self._active else 0.0)
                version += 1
                self.dispatched((client,), version)
        return Advanced(list(range(first + 1, version + 1)))

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        """These clients were sent this version. Their clocks restart before the next arrival: until then `direction`
        gives what the last step was made of."""
        if self._restarts_on_dispatch:
            self._is_told = True
            self._restarting += [[version, client] for client in clients]

    def direction(self) -> Vector:
        if not self._active:
            return self._direction.zero_()
        return torch.mul(self._total.value, 1.0 / self._active_weight, out=self._direction)

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._start.extend(_NEVER for _ in range(len(self._members), clients))
        self._members.join(clients, weight)
        self.table.grow(clients)

    def leave(self, client: int) -> bool:
        if client in self._active:
            self._deactivate(client)
        if client in self._seen:
            self.table.forget(client)
            self._seen.remove(client)
        self._start[client] = _NEVER
        self._restarting = [entry for entry in self._restarting if entry[1] != client]
        self._members.absent.add(client)
        return False

    def lost(self, client: int) -> bool:
        if client not in self._seen:
            self._members.absent.add(client)
        return False

    def give_up(self) -> bool:
        self._members.absent.update(set(range(len(self._members))) - self._seen)
        return False

    def _restart_dispatched(self, now: int) -> None:
        """Whoever was sent a model since the last arrival: its clock restarts, and what it sent before counts again."""
        if not self._restarting or self._restarting[0][0] > now:
            return
        for version, client in self._restarting:
            if client in self._seen:
                self._set_start(client, version)
                if client not in self._active:
                    self._activate(client)
        self._restarting.clear()

    def _expire(self, now: int) -> None:
        queue = self._queue
        while queue and queue[0][0] + self.tau < now:
            start, client = heapq.heappop(queue)
            if self._start[client] == start and client in self._active:
                self._deactivate(client)

    def _set_start(self, client: int, start: int) -> None:
        if self._start[client] != start:
            self._start[client] = start
            heapq.heappush(self._queue, (start, client))
            if len(self._queue) > 2 * len(self._start) + _SLACK:
                self._queue = self._current_queue()

    def _current_queue(self) -> list[tuple[int, int]]:
        """The queue without its outdated entries: a sorted list is a heap."""
        return sorted((start, client) for client, start in enumerate(self._start) if start != _NEVER)

    def _activate(self, client: int) -> None:
        self.table.add_row(client, self._total, self._members.weights[client])
        self._active.add(client)
        self._active_weight += self._members.weights[client]

    def _deactivate(self, client: int) -> None:
        self.table.add_row(client, self._total, -self._members.weights[client])
        self._active.remove(client)
        self._active_weight -= self._members.weights[client]
        if not self._active:
            self.table.empty(self._total)
            self._active_weight = 0.0

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._queue = self._current_queue()
