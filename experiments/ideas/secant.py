"""An idea about old rows: each is carried along to the current model, by a diagonal estimate of its client's curvature.

Curvature-aided aggregation (Wai et al., arXiv 1806.00125, of which we read the abstract) adds H_i (x_now - x_old) to an
old gradient, with the client's Hessian H_i. Clients here send no Hessian, so its diagonal is estimated by the server,
from what the client's rows changed while the model moved between them: a secant, of each number by itself.

A rule knows no model. It does know every step it asked for: with plain steps of one learning rate the model is
x_0 - lr * path, with `path` the sum of directions. A slope along the path times a distance along it is the same change
of the row, whatever the learning rate. With a server optimizer or a schedule that would not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from experiments.ideas.ideas import Rows

from acefl.core.errors import require_number
from acefl.core.rule import Method, Rule
from acefl.core.types import Arrival, Vector
from acefl.rules.settings import empty_vector

_SPARE = 64  # paths that nobody needs any more, kept until it is worth looking


@dataclass(frozen=True)
class SecantACE(Method):
    """The all-client mean of rows, each corrected by slope_i * (path now - path at its model).

    slope_i is the regression of the client's changes on the path between them, older ones counting `decay` times less
    for each visit, and never of negative curvature. `damping` is added below the line, in units of its mean: 0 trusts
    numbers that have hardly moved.
    """

    decay: float = 0.9
    damping: float = 1.0

    def __post_init__(self) -> None:
        require_number("decay", self.decay, lambda decay: 0 <= decay <= 1, "a number from 0 to 1")
        require_number("damping", self.damping, lambda damping: damping >= 0, "a finite number of at least 0")

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return SecantRule(self, clients, like)


class SecantRule(Rows):
    """Three running sums: of rows, of slopes, and of slopes times the places they count from."""

    saved = (
        *(*Rows.saved, "_path", "_paths", "_heard", "_places", "_above", "_below", "_slopes"),
        *("_slope_sum", "_from_sum", "_direction", "_most_paths"),
    )

    def __init__(self, settings: SecantACE, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._decay, self._damping = settings.decay, settings.damping
        exact = torch.zeros_like(like, dtype=torch.float64)
        self._path = exact.clone()
        self._paths: dict[int, Vector] = {}  # by model version, as long as somebody may work on it
        self._most_paths = _SPARE
        self._heard: dict[int, int] = {}  # the version when a client came: what it works on is no older
        self._places: dict[int, Vector] = {}  # the path at the model of a client's row
        self._above: dict[int, Vector] = {}  # regression of its changes on the path between them
        self._below: dict[int, Vector] = {}
        self._slopes: dict[int, Vector] = {}
        self._slope_sum, self._from_sum = exact.clone(), exact.clone()
        self._direction = empty_vector(like)

    def absorb(self, arrival: Arrival) -> bool:
        client = arrival.client
        if arrival.version not in self._paths:
            self._paths[arrival.version] = self._path.clone()
        place = self._path_at(arrival.trained_on)
        slope = torch.zeros_like(place)
        if client in self.trained_on:
            moved, changed = place - self._places[client], arrival.update - self.table.row(client)
            self._above[client] = self._decay * self._above[client] + moved * changed
            self._below[client] = self._decay * self._below[client] + moved.square()
            below = self._below[client] + self._damping * self._below[client].mean()
            slope = torch.where(below > 0, self._above[client] / below, 0.0).clamp_(max=0.0)
            self._correct(client, -1.0)
        else:
            self._above[client], self._below[client] = torch.zeros_like(place), torch.zeros_like(place)
        self._places[client], self._slopes[client] = place, slope
        self._correct(client, 1.0)
        self.table.exchange(client, arrival.update, self.total, 1.0)
        self.note(arrival)
        self._heard[client] = arrival.version
        return not self.warming

    def _path_at(self, version: int) -> Vector:
        """Where the model was then; of a version that is not kept, the one before it, or the oldest."""
        if version not in self._paths:
            version = max((one for one in self._paths if one < version), default=min(self._paths))
        return self._paths[version]

    def _correct(self, client: int, sign: float) -> None:
        self._slope_sum.add_(self._slopes[client], alpha=sign)
        self._from_sum.addcmul_(self._slopes[client], self._places[client], value=sign)

    def direction(self) -> Vector:
        corrected = torch.addcmul(self.total.value.double(), self._slope_sum, self._path).sub_(self._from_sum)
        return self._direction.copy_(corrected).mul_(1.0 / max(1, len(self.trained_on)))

    def clear(self) -> None:
        self._path.add_(self._direction)
        if len(self._paths) >= self._most_paths and not self.warming:
            oldest = min(self._heard.values())
            self._paths = {version: path for version, path in self._paths.items() if version >= oldest}
            self._most_paths = 2 * len(self._paths) + _SPARE

    def leave(self, client: int) -> bool:
        if client in self.trained_on:
            self._correct(client, -1.0)
            for known in (self._heard, self._places, self._above, self._below, self._slopes):
                del known[client]
        return super().leave(client)
