"""FedFa (Xu et al., IJCAI 2024, arXiv 2404.11015): the model is the mean of the last few models that clients sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.rules.base import Method, Rule, Upload
from acefl.rules.settings import check_count, empty_vector
from acefl.types import Arrival, State, Vector


@dataclass(frozen=True)
class FedFa(Method):
    """From the `window`-th arrival on, every arrival makes the model the mean of the last `window` clients' models.

    `lr` is the clients' learning rate; what a client with local steps of its own sends is taken whole with lr=1.
    """

    window: int = 5  # the paper's K

    uploads = Upload.MODEL

    def __post_init__(self) -> None:
        check_count("window", self.window)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FedFaRule(like, self.window)


class FedFaRule(Rule):
    """Keeps clients' models as distances from the model at the start, to subtract from it like every update.

    The rule is given how far a client's model lies from the current one, and knows how far that one lies from the
    start: the mean of the window at the last step. What comes in one turn has the order in which it was sent out.
    """

    uploads = Upload.MODEL

    saved = ("_position",)

    def __init__(self, like: Vector, window: int) -> None:
        self._window = window
        self._models: list[tuple[int, int, Vector]] = []  # (version when it came, order, start - model), oldest first
        self._position = empty_vector(like)  # start - current model
        self._direction = empty_vector(like)

    def absorb(self, arrival: Arrival) -> bool:
        order = arrival.task if arrival.version else len(self._models)  # until the first step turns share a version
        self._models.append((arrival.version, order, self._position + arrival.update))
        self._models.sort(key=lambda entry: entry[:2])
        del self._models[: -self._window]
        return len(self._models) == self._window

    def direction(self) -> Vector:
        torch.mean(torch.stack([model for _, _, model in self._models]), dim=0, out=self._direction)
        return self._direction.sub_(self._position)

    def clear(self) -> None:
        self._position.add_(self._direction)

    def state_dict(self) -> State:
        entries = [[version, order] for version, order, _ in self._models]
        models = [model.clone() for _, _, model in self._models]
        return {**super().state_dict(), "entries": entries, "models": models}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        models = [torch.empty_like(self._position).copy_(model) for model in state["models"]]
        self._models = [(version, task, model) for (version, task), model in zip(state["entries"], models, strict=True)]
