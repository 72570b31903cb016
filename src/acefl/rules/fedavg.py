"""FedAvg (McMahan et al. 2017, arXiv 1602.05629) and FedAdam (Reddi et al. 2021, arXiv 2003.00295): the synchronous
anchors, in the same virtual time as the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from acefl.core.errors import one_of
from acefl.core.optimizers import Adam
from acefl.core.ranges import Choice, Range
from acefl.core.types import Arrival, Vector
from acefl.rules.base import Audience, Members, Method, Rule
from acefl.rules.settings import WEIGHTS, check_count, client_weights, empty_vector


@dataclass(frozen=True)
class FedAvg(Method):
    """Rounds: everybody is sent the model, nobody gets another until all have reported; then a step on their mean.

    `cohort` draws so many clients for each round (in simulations); None takes everybody. A round does not wait for
    clients whose work is lost or refused. What comes from an earlier round is not used. The paper weighs clients by
    their numbers of samples; here that is `weights="samples"`.
    """

    cohort: int | None = None  # the paper's m = C * K
    weights: str = "uniform"

    rounds = True
    arrivals_per_step = None

    def __post_init__(self) -> None:
        if self.cohort is not None:
            check_count("cohort", self.cohort)
        one_of("weights", self.weights, WEIGHTS)

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"cohort": Range(max(1.0, clients / 16), float(clients), whole=True, most=clients)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        rule = FedAvgRule(client_weights(self.weights, clients, samples), like, self.cohort)
        rule.optimizer = self.optimizer
        return rule


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg's rounds with Adam on the server. `lr` is Adam's.

    Args:
        cohort: Clients drawn for each round, in simulations; None: everybody.
        weights: `uniform`, or by number of `samples`.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment; larger is less adaptive.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3  # the paper's tau

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer  # noqa: B018  # refuses wrong settings

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {**super().searched(clients), "beta1": Choice((0.5, 0.9)), "epsilon": Choice((1e-8, 1e-3))}

    @property
    def optimizer(self) -> Adam:
        """What the server steps with."""
        return Adam(self.beta1, self.beta2, self.epsilon)


class FedAvgRule(Rule):
    """The mean of what the clients of a round report, once all have.

    Whoever has reported waits for the others; while the clients that were drawn are at work, nobody is sent a model.
    """

    saved = ("_members", "_sum", "_weight", "_reported", "_over")

    def __init__(self, weights: list[float], like: Vector, cohort: int | None) -> None:
        self._members = Members(weights)
        self._cohort = cohort
        self._sum = empty_vector(like)
        self._direction = empty_vector(like)
        self._weight = 0.0
        self._reported: set[int] = set()
        self._over = False

    @property
    def audience(self) -> Audience:
        if not self._reported or self._complete:
            return Audience.EVERYBODY
        return Audience.NEWCOMERS if self._cohort is None else Audience.NOBODY

    @property
    def _complete(self) -> bool:
        there = len(self._members) - len(self._members.absent - self._reported)
        return self._over or len(self._reported) >= min(there, self._cohort or there)

    @property
    def _due(self) -> bool:
        return bool(self._reported) and self._complete

    def absorb(self, arrival: Arrival) -> bool:
        client = arrival.client
        self._members.absent.discard(client)
        if arrival.staleness == 0:
            weight = self._members.weights[client]
            self._sum.add_(arrival.update, alpha=weight)
            self._weight += weight
            self._reported.add(client)
        return self._due

    def direction(self) -> Vector:
        return torch.mul(self._sum, 1.0 / self._weight, out=self._direction)

    def clear(self) -> None:
        self._sum.zero_()
        self._weight = 0.0
        self._reported.clear()
        self._over = False

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._members.join(clients, weight)

    def leave(self, client: int) -> bool:
        """What it has reported counts."""
        return self.lost(client)

    def lost(self, client: int) -> bool:
        self._members.absent.add(client)
        return self._due

    def give_up(self) -> bool:
        self._over = True
        return self._due
