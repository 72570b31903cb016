"""What the server makes of a rule's direction: a plain step, momentum, or adaptive steps.

They compose with any rule that gives a direction. Adaptive ones are those of Reddi et al. 2021 (Adaptive Federated
Optimization, arXiv 2003.00295): no bias correction, and second moments that start at epsilon squared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from acefl.core.errors import require_number
from acefl.core.settings import Registry
from acefl.core.types import State, Vector


class Stepper(Protocol):
    """An optimizer at work on one model."""

    def step(self, model: Vector, direction: Vector, lr: float) -> None:
        """Change the model in place; the direction is only read."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Optimizer(Protocol):
    """A frozen dataclass of settings that builds a stepper."""

    def build(self, like: Vector) -> Stepper: ...


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


OPTIMIZERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (SGD, Momentum, Adam, Yogi)}
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
