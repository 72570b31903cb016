"""FedAvg (McMahan et al. 2017, arXiv 1602.05629) and FedAdam (Reddi et al. 2021, arXiv 2003.00295): the synchronous
anchors, in the same virtual time as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from acefl.errors import one_of
from acefl.optimizers import Adam
from acefl.rules.settings import WEIGHTS, check_count, client_weights, empty_vector
from acefl.types import Arrival, Rule, State, Vector


@dataclass(frozen=True)
class FedAvg:
    """Rounds: everybody is sent the model, nobody gets another until all have reported; then a step on their mean.

    `cohort` draws so many clients for each round (in simulations); None takes everybody. A round does not wait for
    clients whose work is lost or refused. What comes from an earlier round is not used. The paper weighs clients by
    their numbers of samples; here that is `weights="samples"`.
    """

    cohort: int | None = None  # the paper's m = C * K
    weights: str = "uniform"

    synchronous = True

    def __post_init__(self) -> None:
        _check(self.cohort, self.weights)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return RoundRule(client_weights(self.weights, clients, samples), like, self.cohort)


@dataclass(frozen=True)
class FedAdam:
    """FedAvg's rounds with Adam on the server. `lr` is Adam's."""

    cohort: int | None = None
    weights: str = "uniform"
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3  # the paper's tau

    synchronous = True

    def __post_init__(self) -> None:
        _check(self.cohort, self.weights)
        self.optimizer  # noqa: B018  # refuses wrong settings

    @property
    def optimizer(self) -> Adam:
        """What the server steps with."""
        return Adam(self.beta1, self.beta2, self.epsilon)

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        rule = RoundRule(client_weights(self.weights, clients, samples), like, self.cohort)
        rule.optimizer = self.optimizer
        return rule


def _check(cohort: int | None, weights: str) -> None:
    if cohort is not None:
        check_count("cohort", cohort)
    one_of("weights", weights, WEIGHTS)


class RoundRule:
    """The mean of what the clients of a round report, once all have.

    `warming` while some have and some have not: whoever has, waits. `closed` while the clients that were drawn are at
    work. `due` when a round is over although nobody came: the last one that was awaited will not.
    """

    optimizer: Adam | None = None
    needs_everybody = True  # so nobody waits for a client whose work is lost, until it reports again

    def __init__(self, weights: list[float], like: Vector, cohort: int | None) -> None:
        self._weights = weights
        self._cohort = cohort
        self._sum = empty_vector(like)
        self._direction = empty_vector(like)
        self._weight = 0.0
        self._reported: set[int] = set()
        self._gone: set[int] = set()
        self._over = self._taken = False

    @property
    def warming(self) -> bool:
        """True while somebody has reported in this round and somebody has not."""
        return bool(self._reported) and not self._taken and not self._complete

    @property
    def closed(self) -> bool:
        return self._cohort is not None and self.warming

    @property
    def due(self) -> bool:
        return bool(self._reported) and not self._taken and self._complete

    @property
    def _complete(self) -> bool:
        there = len(self._weights) - len(self._gone - self._reported)
        return self._over or len(self._reported) >= min(there, self._cohort or there)

    def absorb(self, arrival: Arrival) -> bool:
        if self._taken:
            self._start_round()
        client = arrival.client
        self._gone.discard(client)
        if arrival.staleness == 0:
            self._sum.add_(arrival.update, alpha=self._weights[client])
            self._weight += self._weights[client]
            self._reported.add(client)
        return self.due

    def _start_round(self) -> None:
        self._sum.zero_()
        self._weight = 0.0
        self._reported.clear()
        self._over = self._taken = False

    def direction(self) -> Vector:
        self._taken = True
        return torch.mul(self._sum, 1.0 / self._weight, out=self._direction)

    def close_round(self) -> None:
        """Nobody is at work who could still report: the round is over."""
        self._over = True

    def grow(self, clients: int, weight: float = 1.0) -> None:
        """Make room for clients that were unknown at the start. Nobody waits for them until they have come once."""
        self._gone.update(range(len(self._weights), clients))
        self._weights.extend([weight] * (clients - len(self._weights)))

    def forget(self, client: int) -> None:
        """The client has left, or its work is lost: nobody waits for it. What it has reported counts."""
        self._gone.add(client)

    def state_dict(self) -> State:
        return {
            "weights": list(self._weights),
            "sum": self._sum.clone(),
            "weight": self._weight,
            "reported": sorted(self._reported),
            "gone": sorted(self._gone),
            "over": self._over,
            "taken": self._taken,
        }

    def load_state_dict(self, state: State) -> None:
        self._weights = [float(weight) for weight in state["weights"]]
        self._sum.copy_(state["sum"])
        self._weight = float(state["weight"])
        self._reported, self._gone = set(state["reported"]), set(state["gone"])
        self._over, self._taken = bool(state["over"]), bool(state["taken"])
