"""The one gate every arrival passes before it can touch model or table."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import torch

from acefl.core import kernels
from acefl.core.errors import one_of, require
from acefl.core.turns import Turns
from acefl.core.types import Arrival, State, Vector

REASONS = (
    "unknown-client",
    "flooding",
    "wrong-shape",
    "wrong-dtype",
    "future-version",
    "duplicate",
    "non-finite",
    "norm-out-of-line",
)
ACTIONS = ("refuse", "clip")


@dataclass(frozen=True)
class NormLimit:
    """An update may be at most `factor` times as long as the median client's latest accepted one.

    The median is over clients, one norm each, so hostile clients that are fewer than half of those heard of cannot
    carry it beyond the honest ones' norms, however often they send. The limit acts once `history` clients (or all, if
    there are fewer) have been accepted; what comes before that is not measured. `action="clip"` shortens what is too
    long to the limit, `"refuse"` leaves it out.
    """

    factor: float = 10.0
    action: str = "refuse"
    history: int = 10

    def __post_init__(self) -> None:
        one_of("action", self.action, ACTIONS)
        finite = isinstance(self.factor, Real) and math.isfinite(self.factor) and self.factor >= 1
        require(finite, f"factor is {self.factor!r}; allowed: a finite number of at least 1")
        known = isinstance(self.history, Real) and self.history >= 1
        require(known, f"history is {self.history!r}; allowed: at least 1")


class Gate:
    """Decides about each arrival by what can be checked without trusting the client.

    `finite=False` leaves out the look at the numbers: it costs a device synchronisation per arrival, which a simulator
    on a GPU need not pay for its own arithmetic. With `flood=N` a client whose last N arrivals were all refused is only
    looked at every N-th time, so that it cannot make the server read its numbers at will; one good arrival that is
    looked at frees it. `norm` limits how long an update may be. `known_finite` says of which updates a simulator has
    looked at the numbers already.
    """

    def __init__(
        self,
        clients: int,
        like: Vector,
        *,
        finite: bool = True,
        norm: NormLimit | None = None,
        flood: int | None = None,
        known_finite: Callable[[Arrival], bool] | None = None,
    ) -> None:
        require(flood is None or flood >= 2, f"flood is {flood}; allowed: at least 2, or None")
        self.clients = clients
        self._shape = like.shape
        self._dtype = like.dtype
        self._finite = finite or norm is not None  # a norm synchronises anyway
        self._known_finite = known_finite
        self._limit = norm
        self._flood = flood
        self._last_task: dict[int, int] = {}
        self._norms = _Norms()
        self._refused_in_a_row: dict[int, int] = {}

    def refusal(self, arrival: Arrival, version: int) -> str:
        """A reason code, or the empty string: then the arrival counts as accepted and its task as answered."""
        if not 0 <= arrival.client < self.clients:
            return "unknown-client"
        if self._flood is None:
            return self._look(arrival, version)
        row = self._refused_in_a_row.pop(arrival.client, 0)
        unseen = row >= self._flood and row % self._flood != 0
        reason = "flooding" if unseen else self._look(arrival, version)
        if reason:
            self._refused_in_a_row[arrival.client] = row + 1
        return reason

    def _look(self, arrival: Arrival, version: int) -> str:
        if arrival.update.shape != self._shape:
            return "wrong-shape"
        if arrival.update.dtype != self._dtype:
            return "wrong-dtype"
        if not 0 <= arrival.trained_on <= version or arrival.version != version:
            return "future-version"
        if arrival.task <= self._last_task.get(arrival.client, -1):
            return "duplicate"
        if self._finite and not self._has_finite_numbers(arrival):
            return "non-finite"
        if self._limit is not None and self._limit.action == "refuse":
            norm = length(arrival.update)
            if norm > self._longest(self._limit):
                return "norm-out-of-line"
            self._norms.note(arrival.client, norm)
        self._last_task[arrival.client] = arrival.task
        return ""

    @property
    def trusts(self) -> bool:
        """Whether nothing is looked at but what a simulator may vouch for."""
        return self._limit is None and self._flood is None

    def trust(self, turns: Turns) -> None:
        """These arrivals were accepted unseen: their tasks count as answered."""
        self._last_task.update(zip(turns.clients, turns.tasks, strict=True))

    def _has_finite_numbers(self, arrival: Arrival) -> bool:
        known = self._known_finite is not None and self._known_finite(arrival)
        return known or kernels.is_finite(arrival.update)

    def shortened(self, arrival: Arrival) -> Arrival:
        """What an accepted arrival may contribute: itself, or, where norms are clipped, at most the longest allowed."""
        if self._limit is None or self._limit.action != "clip":
            return arrival
        norm, longest = length(arrival.update), self._longest(self._limit)
        self._norms.note(arrival.client, min(norm, longest))
        return replace(arrival, update=arrival.update * (longest / norm)) if norm > longest else arrival

    def _longest(self, limit: NormLimit) -> float:
        """No limit before enough clients were heard of, nor where half of them have nothing to say."""
        median = self._norms.median() if len(self._norms) >= min(limit.history, self.clients) else 0.0
        return limit.factor * median or math.inf

    def state_dict(self) -> State:
        state: State = {"clients": list(self._last_task), "tasks": list(self._last_task.values())}
        if self._limit is not None:
            state["norms"] = self._norms.state_dict()
        if self._flood is not None:
            state["refused_in_a_row"] = [list(pair) for pair in self._refused_in_a_row.items()]
        return state

    def load_state_dict(self, state: State) -> None:
        self._last_task = dict(zip(state["clients"], state["tasks"], strict=True))
        self._norms.load_state_dict(state.get("norms", []))
        self._refused_in_a_row = {client: row for client, row in state.get("refused_in_a_row", [])}


class _Norms:
    """Every client's latest norm, kept sorted as well, so that the median costs no sorting per arrival."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._of)

    def note(self, client: int, norm: float) -> None:
        if client in self._of:
            del self._sorted[bisect_left(self._sorted, self._of[client])]
        self._of[client] = norm
        insort(self._sorted, norm)

    def median(self) -> float:
        """The lower one of two in the middle: with hostile clients under half it is at most an honest norm."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else 0.0

    def state_dict(self) -> list[list[float]]:
        return [[client, norm] for client, norm in self._of.items()]

    def load_state_dict(self, state: list[list[float]]) -> None:
        self._of = {int(client): norm for client, norm in state}
        self._sorted = sorted(self._of.values())


def length(vector: Vector) -> float:
    """The Euclidean norm, in float64: squares of large float32 numbers do not overflow."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
