"""What the server makes of a rule's direction: a plain step, momentum, or adaptive steps.

They compose with any rule that gives a direction. Adaptive ones are those of Reddi et al. 2021 (Adaptive Federated
Optimization, arXiv 2003.00295): no bias correction, and second moments that start at epsilon squared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from acefl.core.errors import require, require_number
from acefl.core.settings import Registry
from acefl.core.state import Stateful
from acefl.core.types import State, Vector


class Stepper(Protocol):
    """An optimizer at work on one model."""

    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        """Change the model in place; the direction is only read."""
        ...

    def state_dict(self) -> State:
        """What it remembers of earlier steps."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Remember what the saved one did."""
        ...


class Optimizer(Protocol):
    """A frozen dataclass of settings that builds a stepper."""

    def build(self, like: Vector) -> Stepper:
        """A stepper for models like this one: of its length, dtype and device."""
        ...


@dataclass(frozen=True)
class SGD:
    """w <- w - lr * direction: what a server does without an optimizer."""

    def build(self, like: Vector) -> Stepper:
        return _Plain()


@dataclass(frozen=True)
class Momentum:
    """u <- beta * u + direction; w <- w - lr * u (FedAvgM, Hsu et al. 2019).

    Args:
        beta: Share of the last step that is kept.
    """

    beta: float = 0.9

    def __post_init__(self) -> None:
        _below_one("beta", self.beta)

    def build(self, like: Vector) -> Stepper:
        return _Momentum(self, like)


@dataclass(frozen=True)
class Nesterov:
    """Nesterov's momentum, which may wait: a step on every direction, momentum of their mean every `period` steps.

    m <- beta m + (mean of the last `period` directions); w <- w - lr ((1 - c period + c) beta m + g / period) at every
    `period`-th step, w <- w - lr (c beta m + g / period) at the others (delayed Nesterov, Liu et al. 2024, arXiv
    2401.09135). `period=1` is Nesterov's momentum as everybody knows it.

    Args:
        beta: Decay of the momentum.
        period: Steps from one look at the momentum to the next, the paper's N.
        c: Share of the momentum that each step in between takes, up to 1 / period; 0: all of it every `period` steps.
    """

    beta: float = 0.9
    period: int = 1
    c: float = 0.0

    def __post_init__(self) -> None:
        _below_one("beta", self.beta)
        whole = isinstance(self.period, int) and not isinstance(self.period, bool) and self.period >= 1
        require(whole, f"period is {self.period!r}; allowed: a whole number of at least 1")
        require_number("c", self.c, lambda c: 0 <= c <= 1 / self.period, f"from 0 to 1 / period, {1 / self.period:g}")

    def build(self, like: Vector) -> Stepper:
        return _Nesterov(self, like)


@dataclass(frozen=True)
class Adam:
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g²; w <- w - lr * m / (sqrt(v) + epsilon).

    `amsgrad` divides by the largest v so far instead.

    Args:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment; larger is less adaptive.
        amsgrad: Divide by the largest second moment so far.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3  # the degree of adaptivity
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check_moments(self.beta1, self.beta2, self.epsilon)

    def build(self, like: Vector) -> Stepper:
        return _Adaptive(self.beta1, self.beta2, self.epsilon, like, yogi=False, amsgrad=self.amsgrad)


@dataclass(frozen=True)
class Yogi:
    """Adam with v <- v - (1 - b2) g² sign(v - g²): second moments that fall as slowly as they rise.

    Args:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment; larger is less adaptive.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3  # the degree of adaptivity

    def __post_init__(self) -> None:
        _check_moments(self.beta1, self.beta2, self.epsilon)

    def build(self, like: Vector) -> Stepper:
        return _Adaptive(self.beta1, self.beta2, self.epsilon, like, yogi=True, amsgrad=False)


OPTIMIZERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (SGD, Momentum, Nesterov, Adam, Yogi)}
_REGISTRY: Registry[Optimizer] = Registry("optimizer", OPTIMIZERS, "Momentum(beta=0.8)")
parse, from_record = _REGISTRY.parse, _REGISTRY.from_record  # Adam, momentum(beta=0.8); what a run recorded


class _Plain:
    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        model.sub_(direction, alpha=lr)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


class _Momentum:
    def __init__(self, settings: Momentum, like: Vector) -> None:
        self._beta = settings.beta
        self._velocity = torch.zeros_like(like)

    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        self._velocity.mul_(self._beta).add_(direction)
        model.sub_(self._velocity, alpha=lr)

    def state_dict(self) -> State:
        return {"velocity": self._velocity.clone()}

    def load_state_dict(self, state: State) -> None:
        self._velocity.copy_(state["velocity"])


class _Nesterov(Stateful):
    saved = ("_momentum", "_collected", "_steps")

    def __init__(self, settings: Nesterov, like: Vector) -> None:
        self._period, self._beta, self._c = settings.period, settings.beta, settings.c
        self._momentum = torch.zeros_like(like)
        self._collected = torch.zeros_like(like)  # the sum of directions since the momentum was last looked at
        self._steps = 0  # since then

    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        self._collected.add_(direction)
        self._steps += 1
        share = self._c
        if self._steps == self._period:
            self._momentum.mul_(self._beta).add_(self._collected, alpha=1.0 / self._period)
            self._collected.zero_()
            self._steps = 0
            share = 1.0 - self._c * (self._period - 1)
        if share:
            model.sub_(self._momentum, alpha=lr * share * self._beta)
        model.sub_(direction, alpha=lr / self._period)


class _Adaptive:
    def __init__(self, beta1: float, beta2: float, epsilon: float, like: Vector, *, yogi: bool, amsgrad: bool) -> None:
        self._beta1, self._beta2, self._epsilon, self._yogi = beta1, beta2, epsilon, yogi
        self._first = torch.zeros_like(like)
        self._second = torch.full_like(like, epsilon**2)
        self._largest = self._second.clone() if amsgrad else None

    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        self._first.mul_(self._beta1).add_(direction, alpha=1.0 - self._beta1)
        square = direction * direction
        if self._yogi:
            self._second.addcmul_(square, torch.sign(self._second - square), value=self._beta2 - 1.0)
        else:
            self._second.mul_(self._beta2).add_(square, alpha=1.0 - self._beta2)
        moment = self._second
        if self._largest is not None:
            moment = torch.maximum(self._largest, self._second, out=self._largest)
        model.addcdiv_(self._first, moment.sqrt().add_(self._epsilon), value=-lr)

    def state_dict(self) -> State:
        largest = {} if self._largest is None else {"largest": self._largest.clone()}
        return {"first": self._first.clone(), "second": self._second.clone(), **largest}

    def load_state_dict(self, state: State) -> None:
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        if self._largest is not None:
            self._largest.copy_(state["largest"])


def _check_moments(beta1: float, beta2: float, epsilon: float) -> None:
    _below_one("beta1", beta1)
    _below_one("beta2", beta2)
    require_number("epsilon", epsilon, lambda value: value > 0, "a finite number above 0")


def _below_one(name: str, value: float) -> None:
    require_number(name, value, lambda beta: 0 <= beta < 1, "at least 0 and below 1")
