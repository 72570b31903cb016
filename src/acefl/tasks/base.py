"""What a task is to the rest of the library: models in, updates and evaluations out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from acefl.types import Vector


@dataclass(frozen=True)
class Evaluation:
    """How good a model is: overall metrics, and every client's own loss and (where there is one) accuracy.

    Args:
        metrics: Numbers by name, such as accuracy and loss.
        client_loss: One per client.
        client_accuracy: One per client; None where there is none.
    """

    metrics: dict[str, float]
    client_loss: torch.Tensor
    client_accuracy: torch.Tensor | None = None


class Task(Protocol):
    """A model, its data split over clients, and the work a client does on it."""

    clients: int
    samples: list[int]  # per client
    objective: str  # the metric, smaller is better, by which a learning rate is chosen
    batch_limit: int  # how many client updates to compute in one call at most

    def describe(self) -> dict[str, Any]:
        """What made this task, as plain JSON: its name and arguments."""
        ...

    def initial(self) -> Vector:
        """The model everybody starts from."""
        ...

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """Row k: what clients[k] sends after working on models[k], with randomness from keys[k] alone."""
        ...

    def evaluate(self, model: Vector) -> Evaluation: ...
