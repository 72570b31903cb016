"""Evaluation by the clients, on their own data: a question to every node, and answers as they come."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from acefl.fleets.flower.records import Findings
from acefl.tasks.base import Evaluation

ACCURACY, LOSS = ("accuracy", "eval_acc"), ("loss", "eval_loss")  # ours, and those of Flower's own templates


@dataclass
class Survey:
    """What the nodes say about the model of one version."""

    version: int
    waiting: set[int]  # clients
    found: dict[int, Findings] = field(default_factory=dict)

    def evaluation(self, clients: int) -> Evaluation:
        """Every client's loss and accuracy, and `client_loss`, in which every client counts the same."""
        loss, accuracy = self._each(LOSS), self._each(ACCURACY)
        metrics = {"client_loss": sum(loss.values()) / len(loss)} if loss else {}
        answered = frozenset(self.found)
        return Evaluation(metrics, _column(loss, clients), _column(accuracy, clients), answered=answered)

    def means(self) -> dict[str, float]:
        """Every metric's mean over clients, weighted by their numbers of samples, as Flower's strategies do it."""
        names = sorted({name for found in self.found.values() for name in found.metrics})
        weights = {client: found.samples or 1 for client, found in self.found.items()}
        means = {}
        for name in names:
            have = {client: found.metrics[name] for client, found in self.found.items() if name in found.metrics}
            total = sum(weights[client] for client in have)
            means[name] = sum(weights[client] * value for client, value in have.items()) / total
        return means

    def _each(self, names: tuple[str, ...]) -> dict[int, float]:
        return {
            client: next(found.metrics[name] for name in names if name in found.metrics)
            for client, found in sorted(self.found.items())
            if any(name in found.metrics for name in names)
        }


def _column(values: dict[int, float], clients: int) -> torch.Tensor | None:
    """A number per client, NaN where there is none; None where there are none at all."""
    if not values:
        return None
    column = torch.full((clients,), float("nan"), dtype=torch.float64)
    for client, value in values.items():
        column[client] = value
    return column
