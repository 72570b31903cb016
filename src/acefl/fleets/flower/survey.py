"""Evaluation by the clients, on their own data: a question to every node, and answers as they come."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from acefl.core.metrics import base, direction
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
        """Every client's loss and accuracy, other metrics of which it is known which way they are better (such as f1),
        and `client_loss` and the like, in which every client counts the same."""
        loss, accuracy = self._each(LOSS), self._each(ACCURACY)
        others = {name: self._each((name,)) for name in self._others()}
        metrics = {f"client_{name}": _mean(values) for name, values in {"loss": loss, **others}.items() if values}
        columns = {name: column for name, own in others.items() if (column := _column(own, clients)) is not None}
        return Evaluation(
            metrics,
            _column(loss, clients),
            _column(accuracy, clients),
            answered=frozenset(self.found),
            client_metrics=columns,
        )

    def _others(self) -> list[str]:
        names = {name for found in self.found.values() for name in found.metrics} - {*LOSS, *ACCURACY}
        return sorted(name for name in names if base(name) == name and direction(name, {}) is not None)

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


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)


def _column(values: dict[int, float], clients: int) -> torch.Tensor | None:
    """A number per client, NaN where there is none; None where there are none at all."""
    if not values:
        return None
    column = torch.full((clients,), float("nan"), dtype=torch.float64)
    for client, value in values.items():
        column[client] = value
    return column
