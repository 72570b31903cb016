"""Malenia SGD (Tyurin and Richtárik, NeurIPS 2023, arXiv 2305.12387): collect gradients of the current model from
everybody, then step once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from acefl.errors import require, require_number
from acefl.rules.client_means import ClientMeans
from acefl.types import Arrival, Rule, State, Vector

_NEARLY = 1.0 - 1e-12  # a harmonic mean of equal counts may be rounded below them


@dataclass(frozen=True)
class MaleniaSGD:
    """A step on the mean over clients of their mean gradients at the current model, once enough are in.

    Enough is when the harmonic mean of the clients' numbers of gradients reaches `batch`; with `batch=1`, when
    everybody has sent one. What was computed on an older model is left out.
    """

    batch: float = 1.0  # the paper's S / n
    home: str | os.PathLike[str] = "memory"

    arrivals_per_step = None  # now more, now fewer

    def __post_init__(self) -> None:
        require_number("batch", self.batch, lambda batch: batch >= 1, "a finite number of at least 1")
        require(bool(str(self.home)), "home is empty; allowed: 'memory', 'device' or a path")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return CollectingRule(clients, ClientMeans(clients, like, self.home), self.batch)


class CollectingRule:
    needs_everybody = True  # so nobody waits for a client whose work is lost, until it reports again

    def __init__(self, clients: int, means: ClientMeans, batch: float) -> None:
        self._clients = clients
        self._means = means
        self._batch = batch
        self._gone: set[int] = set()  # whom nobody waits for
        self._taken = False

    def absorb(self, arrival: Arrival) -> bool:
        if self._taken:
            self._means.clear()
            self._taken = False
        self._gone.discard(arrival.client)
        if arrival.staleness > 0:
            return False
        self._means.add(arrival.client, arrival.update)
        return self._is_enough()

    def _is_enough(self) -> bool:
        """Of those who are there: the few gradients of one who left, which nobody can add to, do not hold up the step."""
        counts = [count for client, count in self._means.counts.items() if client not in self._gone]
        waiting = len(counts) + len(self._gone) < self._clients
        return not waiting and len(counts) / sum(1.0 / count for count in counts) >= self._batch * _NEARLY

    def direction(self) -> Vector:
        self._taken = True
        return self._means.mean()

    def grow(self, clients: int, weight: float = 1.0) -> None:
        """Make room for clients that were unknown at the start. Nobody waits for them until they have come once."""
        self._gone.update(range(self._clients, clients))
        self._clients = clients
        self._means.grow(clients)

    def forget(self, client: int) -> None:
        """The client has left, or its work is lost: nobody waits for it. What it has sent for this step counts."""
        self._gone.add(client)

    def state_dict(self) -> State:
        return {
            "means": self._means.state_dict(),
            "clients": self._clients,
            "gone": sorted(self._gone),
            "taken": self._taken,
        }

    def load_state_dict(self, state: State) -> None:
        self._means.load_state_dict(state["means"])
        self._clients, self._gone = int(state["clients"]), set(state["gone"])
        self._taken = bool(state["taken"])
