"""What a task is to the rest of the library: models in, updates and evaluations out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from acefl.types import Vector


@dataclass(frozen=True)
class Evaluation:
    """How good a model is: overall metrics, and every client's loss and (where there is one) accuracy.

    Each client's score is there twice where it can be: on the data that the client trains on, and on data that nobody
    trains on (held out). A client of which there is nothing to judge by has NaN, and the means in `metrics` leave it
    out.
    """

    metrics: dict[str, float]
    client_loss: torch.Tensor  # on the data that the client trains on
    client_accuracy: torch.Tensor | None = None  # the same
    heldout_loss: torch.Tensor | None = None
    heldout_accuracy: torch.Tensor | None = None

    def per_client(self) -> dict[str, torch.Tensor]:
        """Every client's scores, under the names they have in `run.clients`."""
        columns = {
            "accuracy": self.client_accuracy,
            "loss": self.client_loss,
            "heldout_accuracy": self.heldout_accuracy,
            "heldout_loss": self.heldout_loss,
        }
        return {name: values for name, values in columns.items() if values is not None}

    def scored(self, column: str) -> torch.Tensor:
        """Which clients have a score in this column. A NaN is the lack of one, unless the model itself has diverged."""
        values = self.per_client()[column]
        mean = self.metrics.get("heldout_client_loss" if column.startswith("heldout_") else "client_loss", math.nan)
        return ~values.isnan() if math.isfinite(mean) else torch.ones_like(values, dtype=torch.bool)


def by_speed(column: str) -> tuple[str, str, str, str]:
    """What a column's means over the slow and the fast and its worst are called, and how many clients lack it."""
    held, score = ("heldout_", column.removeprefix("heldout_")) if column.startswith("heldout_") else ("", column)
    return f"{held}slow_{score}", f"{held}fast_{score}", f"{held}worst_{score}", f"{held}unscored_clients"


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
