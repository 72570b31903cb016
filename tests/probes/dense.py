"""The probes once more, in the plainest way: everything is kept, nothing is recycled, sums are taken anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tests.rules.oracles import (
    ACEDOracle,
    ACEOracle,
    ASGDOracle,
    CA2FLOracle,
    DelayAdaptiveOracle,
    FedBuffOracle,
    Numbers,
    Oracle,
)

from acefl import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff, Server, Step
from acefl.core.rule import Method
from acefl.core.types import Arrival
from acefl.runs.training import Training

ORACLES: list[tuple[Method, Callable[[int, int], Oracle]]] = [
    (ACE(), lambda n, dim: ACEOracle([1.0] * n, wait=True)),
    (ACE(warmup="seen"), lambda n, dim: ACEOracle([1.0] * n, wait=False)),
    (ACE(variant="direct"), lambda n, dim: ACEOracle([1.0] * n, wait=True)),
    (ACE(variant="client-held"), lambda n, dim: ACEOracle([1.0] * n, wait=True)),
    (ACED(tau=12), lambda n, dim: ACEDOracle([1.0] * n, dim, tau=12, freshness="dispatch", wait=True)),
    (
        ACED(tau=12, freshness="model"),
        lambda n, dim: ACEDOracle([1.0] * n, dim, tau=12, freshness="model", wait=True),
    ),
    (CA2FL(buffer=4), lambda n, dim: CA2FLOracle(n, dim, 4)),
    (FedBuff(buffer=4), lambda n, dim: FedBuffOracle(4, "none")),
    (FedBuff(buffer=3, staleness="sqrt"), lambda n, dim: FedBuffOracle(3, "sqrt")),
    (ASGD(), lambda n, dim: ASGDOracle()),
    (DelayAdaptiveASGD(threshold=5), lambda n, dim: DelayAdaptiveOracle(5)),
]
NAMES = [repr(settings) for settings, _ in ORACLES]


class Dense:
    """An observer that gives an oracle of the rule one unit vector per arrival, each with a coordinate of its own."""

    def __init__(self, oracle: Callable[[int, int], Oracle], arrivals: int) -> None:
        self._make, self._dim = oracle, arrivals
        self.came: list[Arrival] = []  # every accepted arrival
        self._sent: list[tuple[list[int], int]] = []  # whom a model was sent to since the last of them
        self.weights: list[Numbers] = []  # of every step, one weight per arrival so far (later ones: 0)
        self.updates: list[torch.Tensor] = []  # what the model really stepped on
        self.arrivals: list[int] = []  # accepted before each step

    def started(self, run: Training) -> None:
        self._oracle = self._make(run.task.clients, self._dim)
        self.models = [run.server.model.clone()]

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if not reason:
            unit = np.zeros(self._dim)
            unit[len(self.came)] = 1.0
            for clients, version in self._sent:
                if isinstance(self._oracle, ACEDOracle):
                    self._oracle.dispatched(clients, version)
            self._sent.clear()
            self._oracle.absorb(arrival.client, unit, arrival.trained_on, arrival.version)
            self.came.append(arrival)

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self._sent.append((list(clients), version))

    def stepped(self, step: Step, server: Server) -> None:
        if step.stepped:
            self.weights.append(self._oracle.step(step.version - 1))
            self.updates.append(server.direction.clone())
            self.arrivals.append(step.arrivals)
            self.models.append(server.model.clone())

    def evaluated(self, row: dict[str, float]) -> None:
        pass

    def by_pair(self, step: int) -> dict[tuple[int, int], float]:
        """The weights of a step, by client and version."""
        pairs: dict[tuple[int, int], float] = {}
        for arrival, weight in zip(self.came, self.weights[step], strict=False):
            if weight:
                pair = (arrival.client, arrival.trained_on)
                pairs[pair] = pairs.get(pair, 0.0) + float(weight)
        return pairs

    def fresh(self, step: int) -> list[tuple[Arrival, float]]:
        """What came since the step before, with its weight in this one."""
        since = range(self.arrivals[step - 1] if step else 0, self.arrivals[step])
        return [(self.came[k], float(self.weights[step][k])) for k in since]

    def latest(self, step: int, clients: int) -> list[int]:
        """The version of every client's latest contribution when the step was made."""
        latest = [0] * clients
        for arrival in self.came[: self.arrivals[step]]:
            latest[arrival.client] = arrival.trained_on
        return latest
