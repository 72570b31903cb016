"""FedStaleWeight (Ma, Tu, Chen and Janapa Reddi 2024, arXiv 2406.02877): a buffer in which the slow weigh more, as they
come less often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acefl.core.types import Arrival, Vector
from acefl.rules.base import Buffered, Rule
from acefl.rules.settings import check_count, empty_vector


@dataclass(frozen=True)
class FedStaleWeight(Buffered):
    """A step on the weighted mean of `buffer` updates, each weighing as much as its client is stale on average.

    A client's average is over all its arrivals so far, those in the buffer included. If nobody in the buffer has ever
    been stale, all weigh the same.
    """

    buffer: int = 10

    def __post_init__(self) -> None:
        check_count("buffer", self.buffer)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FedStaleWeightRule(like, self.buffer)


class FedStaleWeightRule(Rule):
    saved = ("_staleness", "_visits", "_sums", "_counts")

    def __init__(self, like: Vector, buffer: int) -> None:
        self._like = like
        self._buffer = buffer
        self._staleness: dict[int, int] = {}  # client -> sum over its arrivals
        self._visits: dict[int, int] = {}
        self._sums: dict[int, Vector] = {}  # what each client has in the buffer
        self._counts: dict[int, int] = {}
        self._direction = empty_vector(like)

    def absorb(self, arrival: Arrival) -> bool:
        client = arrival.client
        self._staleness[client] = self._staleness.get(client, 0) + arrival.staleness
        self._visits[client] = self._visits.get(client, 0) + 1
        if client in self._sums:
            self._sums[client].add_(arrival.update)
        else:
            self._sums[client] = empty_vector(self._like).copy_(arrival.update)
        self._counts[client] = self._counts.get(client, 0) + 1
        return sum(self._counts.values()) >= self._buffer

    def direction(self) -> Vector:
        self._direction.zero_()
        for client, share in self._shares().items():
            self._direction.add_(self._sums[client], alpha=share)
        return self._direction

    def _shares(self) -> dict[int, float]:
        """What each update of a client in the buffer is multiplied by."""
        weights = {client: self._staleness[client] / self._visits[client] for client in self._sums}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1.0)
        total = sum(weight * self._counts[client] for client, weight in weights.items())
        return {client: weight / total for client, weight in weights.items()}

    def clear(self) -> None:
        self._sums, self._counts = {}, {}

    def leave(self, client: int) -> bool:
        """Should it come back, it is a new one. What it has in the buffer counts."""
        if client not in self._sums:
            self._staleness.pop(client, None)
            self._visits.pop(client, None)
        return False
