"""An idea about old rows, after FedSteer (arXiv 2606.10124): rows are places in a subspace that moves on.

Of the paper we read the abstract. A few clients' latest updates span a subspace. A client's update is projected onto it
when it comes; from then on its row is the same coordinates, on whatever those few clients have sent since. So rows of
silent clients move with the others, and what lies outside of the subspace is forgotten. Which clients span it and how
coordinates are found are our readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from experiments.ideas.ideas import Reports

from acefl.core.errors import require_number
from acefl.core.rule import Method, Rule
from acefl.core.types import Arrival, Vector
from acefl.rules.settings import check_count, empty_vector


@dataclass(frozen=True)
class SteeredACE(Method):
    """The all-client mean; of whoever came since the last step the update, of others their coordinates, steered.

    `rank` clients span the subspace: those whose first updates are farthest from the span of the ones chosen before.
    Coordinates are by least squares, with `ridge` times the mean squared length of the spanning updates against large
    ones. The server keeps `rank` updates, and `rank` numbers of each client.
    """

    rank: int = 10
    ridge: float = 0.1

    def __post_init__(self) -> None:
        check_count("rank", self.rank)
        require_number("ridge", self.ridge, lambda ridge: ridge > 0, "a finite number above 0")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return SteeredRule(self, clients, like)


class SteeredRule(Reports):
    saved = (*Reports.saved, "_span", "_slots", "_coordinates", "_fresh")

    def __init__(self, settings: SteeredACE, clients: int, like: Vector) -> None:
        super().__init__(clients)
        self._ridge = settings.ridge
        self._span = torch.zeros(settings.rank, like.numel(), device=like.device)  # an update per slot
        self._slots: dict[int, int] = {}  # of the clients that span it
        self._coordinates: dict[int, Vector] = {}
        self._fresh: dict[int, Vector] = {}  # what came since the last step
        self._direction = empty_vector(like)

    def absorb(self, arrival: Arrival) -> bool:
        self._fresh[arrival.client] = arrival.update.to(torch.float32).clone()
        self._coordinates.pop(arrival.client, None)
        self.note(arrival)
        return not self.warming

    def direction(self) -> Vector:
        self._direction.zero_()
        for client in sorted(self._fresh):
            self._direction.add_(self._fresh[client])
        if self._coordinates:
            together = torch.stack(list(self._coordinates.values())).sum(0)
            self._direction.add_(together @ self._span)
        return self._direction.mul_(1.0 / max(1, len(self.trained_on)))

    def clear(self) -> None:
        """Take in what came: first who spans the subspace, then who fills it up, then everybody's coordinates."""
        for client in self._fresh.keys() & self._slots.keys():
            self._span[self._slots[client]] = self._fresh[client]
        for slot in sorted(set(range(len(self._span))) - set(self._slots.values())):
            self._fill(slot)
        squares = self._span @ self._span.T
        squares += self._ridge * squares.diagonal().mean() * torch.eye(len(squares), device=squares.device)
        for client in sorted(self._fresh):
            update = self._fresh[client]
            if client in self._slots:
                own = torch.zeros(len(self._span), device=update.device)
                own[self._slots[client]] = 1.0
            elif bool(self._span.any()):
                own = torch.linalg.solve(squares, self._span @ update)
            else:
                own = torch.zeros(len(self._span), device=update.device)
            self._coordinates[client] = own
        self._fresh.clear()

    def _fill(self, slot: int) -> None:
        """Give the slot to whoever came and is farthest from the span so far."""
        waiting = sorted(self._fresh.keys() - self._slots.keys())
        if waiting:
            updates = torch.stack([self._fresh[client] for client in waiting])
            if self._slots:
                basis = torch.linalg.qr(self._span[sorted(self._slots.values())].T).Q
                updates = updates - (updates @ basis) @ basis.T
            chosen = waiting[int(updates.square().sum(1).argmax())]
            self._slots[chosen] = slot
            self._span[slot] = self._fresh[chosen]

    def leave(self, client: int) -> bool:
        """Its place in the span is free; the part of others' rows that was on it is lost."""
        self._coordinates.pop(client, None)
        self._fresh.pop(client, None)
        slot = self._slots.pop(client, None)
        if slot is not None:
            self._span[slot] = 0.0
            for own in self._coordinates.values():
                own[slot] = 0.0
        return super().leave(client)
