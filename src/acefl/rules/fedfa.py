"""FedFa (Xu et al., IJCAI 2024, arXiv 2404.11015): the model is the mean of the last few models that clients sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Method, Rule, Upload
from acefl.rules.settings import check_count, empty_vector


@dataclass(frozen=True)
class FedFa(Method):
    """From the `window`-th arrival on, every arrival makes the model the mean of the last `window` clients' models.

    `lr` is the clients' learning rate; what a client with local steps of its own sends is taken whole with lr=1.
    """

    window: int = 5  # the paper's K

    uploads = Upload.MODEL
    order_matters = True  # the oldest model leaves the window first

    @property
    def tasks_per_step(self) -> float:
        return self.window

    def __post_init__(self) -> None:
        check_count("window", self.window)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"window": Range(2.0, float(min(64, max(2, clients))), whole=True)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FedFaRule(like, self.window)


class FedFaRule(Rule):
    """Keeps clients' models as distances from the model at the start, to subtract from it like every update.

    The rule is given how far a client's model lies from the current one, and knows how far that one lies from the
    start: the mean of the window at the last step.
    """

    uploads = Upload.MODEL

    saved = ("_models", "_position")

    def __init__(self, like: Vector, window: int) -> None:
        self._window = window
        self._models: list[Vector] = []  # start - model, in the order they came
        self._position = empty_vector(like)  # start - current model
        self._direction = empty_vector(like)

    def absorb(self, arrival: Arrival) -> bool:
        self._models.append(self._position + arrival.update)
        del self._models[: -self._window]
        return len(self._models) == self._window

    def direction(self) -> Vector:
        torch.mean(torch.stack(self._models), dim=0, out=self._direction)
        return self._direction.sub_(self._position)

    def clear(self) -> None:
        self._position.add_(self._direction)
