"""For every method of the vectors: its settings, and the dense oracle that says what the model is.

The oracles are those of tests/rules/oracles.py, written from the papers' formulas: lists of vectors in float64, all
sums taken anew. Nothing here calls acefl.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tests.rules import oracles as of
from tests.rules.oracles import Numbers

Step = Callable[[Numbers, Numbers, float], Numbers]  # model, direction, lr -> model


class Federation(Protocol):
    """What an oracle knows of the world: the model, and who comes, joins and leaves."""

    model: Numbers
    version: int

    def turn(self, arrivals: list[tuple[int, Numbers, int]]) -> bool:
        """(client, update, age) of what came before one step; whether the model stepped."""
        ...

    def join(self, clients: int) -> None: ...

    def leave(self, client: int) -> None: ...


@dataclass(frozen=True)
class Case:
    """A method with settings, named as acefl names them."""

    method: str
    settings: dict[str, Any]
    formula: str
    build: Callable[[int, Numbers], Federation]  # from the clients and the first model
    elastic: bool = True  # whether clients may join and leave


class Directions:
    """A federation whose method gives a direction, which the server steps on."""

    def __init__(self, oracle: of.Oracle, model: Numbers, lr: float, step: Step, rate: Callable[[int], float]) -> None:
        self.oracle, self.model, self.version = oracle, model, 0
        self._lr, self._step, self._rate = lr, step, rate
        self._stalest = 0

    def turn(self, arrivals: list[tuple[int, Numbers, int]]) -> bool:
        due = False
        for client, update, age in arrivals:
            trained_on = max(0, self.version - age)
            due |= self.oracle.absorb(client, update, trained_on, self.version)
            self._stalest = max(self._stalest, self.version - trained_on)
        if due:
            self.model = self._step(self.model, self.oracle.step(self.version), self._lr * self._rate(self._stalest))
            self.version, self._stalest = self.version + 1, 0
        return due

    def join(self, clients: int) -> None:
        self.oracle.grow(clients, 1.0)

    def leave(self, client: int) -> None:
        self.oracle.forget(client)


class Models:
    """A federation whose method mixes clients' own models; lr is the clients'."""

    def __init__(self, oracle: Any, model: Numbers, lr: float) -> None:
        self.oracle, self.models, self._lr = oracle, [model], lr

    @property
    def model(self) -> Numbers:
        return self.models[-1]

    @property
    def version(self) -> int:
        return len(self.models) - 1

    def turn(self, arrivals: list[tuple[int, Numbers, int]]) -> bool:
        sent = []
        for client, update, age in arrivals:
            trained_on = max(0, self.version - age)
            sent.append((client, self.models[trained_on] - self._lr * update, self.version - trained_on))
        new = self.oracle.turn(self.model, sent)
        if new is not None:
            self.models.append(new)
        return new is not None

    def join(self, clients: int) -> None:
        raise NotImplementedError

    def leave(self, client: int) -> None:
        raise NotImplementedError


def plain(model: Numbers, direction: Numbers, lr: float) -> Numbers:
    return model - lr * direction


def cases(lr: float) -> list[Case]:
    """Every method, small buffers so that short scripts fill them."""

    def steps(
        method: str,
        formula: str,
        oracle: Callable[[int, int], of.Oracle],
        /,
        optimizer: Callable[[], Step] = lambda: plain,
        rate: Callable[[int], float] = lambda stalest: 1.0,
        **settings: Any,
    ) -> Case:
        return Case(
            method,
            settings,
            formula,
            lambda n, start: Directions(oracle(n, len(start)), start, lr, optimizer(), rate),
        )

    def mixes(method: str, formula: str, oracle: Callable[[int, Numbers], Any], /, **settings: Any) -> Case:
        build = lambda n, start: Models(oracle(n, start), start, lr)  # noqa: E731
        return Case(method, settings, formula, build, elastic=False)

    def ones(n: int) -> list[float]:
        return [1.0] * n

    return [
        steps(
            "ACE",
            "w -= lr mean_i G_i; the first step waits for everybody",
            lambda n, d: of.ACEOracle(ones(n), wait=True),
            warmup="wait",
        ),
        steps(
            "ACE",
            "w -= lr mean over clients seen of G_i",
            lambda n, d: of.ACEOracle(ones(n), wait=False),
            warmup="seen",
        ),
        steps(
            "RobustACE",
            "w -= lr median over clients of G_i, of each number by itself",
            lambda n, d: of.MedianOracle(ones(n), wait=True),
            aggregate="median",
        ),
        steps(
            "ACED",
            "ACE over the clients whose last model is at most tau steps old",
            lambda n, d: of.ACEDOracle(ones(n), d, tau=2, freshness="model", wait=False),
            tau=2,
            freshness="model",
            warmup="seen",
        ),
        steps(
            "MIFA",
            "ACE, asked after every 2 arrivals",
            lambda n, d: of.MIFAOracle(n, 2, wait=True),
            buffer=2,
            warmup="wait",
        ),
        steps(
            "CA2FL",
            "w -= lr (h + sum_S (u_i - h_i) / |S|), h over all clients, those not seen as zeros",
            lambda n, d: of.CA2FLOracle(n, d, 2),
            buffer=2,
        ),
        steps(
            "FedBuff",
            "w -= lr mean of a buffer of 2",
            lambda n, d: of.FedBuffOracle(2, "none"),
            buffer=2,
            staleness="none",
        ),
        steps(
            "FedBuff",
            "w -= lr (1/2) sum of u / sqrt(1 + staleness)",
            lambda n, d: of.FedBuffOracle(2, "sqrt"),
            buffer=2,
            staleness="sqrt",
        ),
        steps("ASGD", "w -= lr u", lambda n, d: of.ASGDOracle()),
        steps(
            "DelayAdaptiveASGD",
            "w -= lr min(1, threshold / staleness) u",
            lambda n, d: of.DelayAdaptiveOracle(1),
            threshold=1,
        ),
        steps("RingmasterASGD", "w -= lr u if staleness < 2", lambda n, d: of.RingmasterOracle(2), threshold=2),
        steps(
            "RingleaderASGD",
            "phase 1 collects until everybody has come; phase 2: one step per client on the mean of the means",
            lambda n, d: of.RingleaderOracle(n),
        ),
        steps(
            "MaleniaSGD",
            "gradients of the current model only; a step on the mean of the means once everybody has sent one",
            lambda n, d: of.MaleniaOracle(n, 1.0),
            batch=1.0,
        ),
        steps(
            "FedStaleWeight",
            "w -= lr sum_j p_j u_j, p_j in proportion to the mean staleness of j's client",
            lambda n, d: of.FedStaleWeightOracle(2),
            buffer=2,
        ),
        steps(
            "FADAS",
            "AMSGrad on the mean of a buffer; lr_t = min(lr, 1 / stalest) if stalest > threshold",
            lambda n, d: of.FedBuffOracle(2, "none"),
            lambda: of.AdamOracle(0.9, 0.99, 1e-8, amsgrad=True).step,
            lambda stalest: 1.0 if stalest <= 1 else min(lr, 1.0 / stalest) / lr,
            buffer=2,
            threshold=1,
            beta1=0.9,
            beta2=0.99,
            epsilon=1e-8,
        ),
        mixes(
            "FedAsync",
            "w = (1 - a_t) w + a_t w_i, w_i = w_start - lr u, a_t = 0.6 (1 + staleness)^-0.5",
            lambda n, start: of.FedAsyncOracle(0.6, "polynomial", 0.5, 4.0),
            alpha=0.6,
            staleness="polynomial",
            a=0.5,
        ),
        mixes(
            "FedAsync",
            "a_t = 0.6 times 1 if staleness <= 1, else 1 / (2 (staleness - 1) + 1)",
            lambda n, start: of.FedAsyncOracle(0.6, "hinge", 2.0, 1.0),
            alpha=0.6,
            staleness="hinge",
            a=2.0,
            b=1.0,
        ),
        mixes("FedFa", "w = mean of the last 2 clients' models", lambda n, start: of.FedFaOracle(2), window=2),
        mixes("AREA", "w += (1/n) sum (y_new - y_old)", lambda n, start: of.AREAOracle(n, start, 2), buffer=2),
        steps(
            "FedAvg",
            "rounds: w -= lr mean of everybody's update of the current model",
            lambda n, d: of.FedAvgOracle(ones(n), None),
        ),
        steps(
            "FedAdam",
            "FedAvg's mean, and Adam without bias correction, v from epsilon squared",
            lambda n, d: of.FedAvgOracle(ones(n), None),
            lambda: of.AdamOracle(0.9, 0.99, 1e-3).step,
            beta1=0.9,
            beta2=0.99,
            epsilon=1e-3,
        ),
        steps(
            "Calibrated",
            "w -= lr (beta h + (c / |S|) sum_S (u_i - beta h_i))",
            lambda n, d: of.CalibratedOracle(n, d, 0.5, 1.0, 1, "wait"),
            c=0.5,
            beta=1.0,
            buffer=1,
            warmup="wait",
        ),
        steps(
            "Calibrated",
            "the same; of a client that came twice the first counts 1 - beta",
            lambda n, d: of.CalibratedOracle(n, d, 0.5, 0.5, 2, "seen"),
            c=0.5,
            beta=0.5,
            buffer=2,
            warmup="seen",
        ),
        steps(
            "RescaledASGD",
            "w -= lr (t_i / H) u, t_i the client's mean of 1 + staleness, H their harmonic mean",
            lambda n, d: of.RescaledASGDOracle(),
        ),
        steps(
            "DelayedNesterov",
            "w -= lr (c beta m + u / N), every N-th step (1 - c N + c) in place of c, after m = beta m + mean u",
            lambda n, d: of.ASGDOracle(),
            lambda: of.NesterovOracle(0.9, 3, 0.1).step,
            period=3,
            beta=0.9,
            c=0.1,
        ),
        steps(
            "Clipped",
            "ASGD of u min(1, threshold / |u|)",
            lambda n, d: of.ClippedOracle(of.ASGDOracle(), 1.5),
            method="ASGD",
            threshold=1.5,
        ),
    ]


def start_of(script: dict[str, Any]) -> Numbers:
    return np.array(script["start"], dtype=np.float64)
