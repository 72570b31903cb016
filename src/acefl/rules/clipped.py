"""Clipping (Erickson and Johansson, ICML 2026, arXiv 2606.13287): no single update is longer than a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property

from acefl.core.errors import require, require_number
from acefl.core.gate import length
from acefl.core.optimizers import Optimizer
from acefl.core.ranges import Choice, Range
from acefl.core.settings import label, plain, settings_of
from acefl.core.types import Arrival, State, Vector
from acefl.rules.base import Audience, Method, Rule, Upload
from acefl.rules.registry import PLAIN, registry_of

_METHODS = registry_of(PLAIN)


@dataclass(frozen=True)
class Clipped(Method):
    """A method that is given every update shortened to a norm of at most `threshold`; with ASGD the paper's.

    Args:
        method: The method: a name with settings as in `ACED(tau=300)`, or the settings themselves.
        threshold: The longest an update may be.
    """

    method: str | Method = "ASGD"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        require_number("threshold", self.threshold, lambda threshold: threshold > 0, "a finite number above 0")
        text = _text(self.method) if isinstance(self.method, Method) else self.method
        require(isinstance(text, str), f"method is {self.method!r}; allowed: a method's name, as in 'ACED(tau=300)'")
        object.__setattr__(self, "method", text)  # plain text, which records hold and a person types
        whole = self.inner.uploads is Upload.UPDATE
        require(whole, f"method is {text!r}; allowed: one whose clients upload updates, not changes or models")

    @cached_property
    def inner(self) -> Method:
        """The settings of the method that is clipped."""
        return _METHODS.parse(str(self.method))

    @property
    def optimizer(self) -> Optimizer | None:
        return self.inner.optimizer

    @property
    def rounds(self) -> bool:
        return self.inner.rounds

    @property
    def arrivals_per_step(self) -> int | None:
        return self.inner.arrivals_per_step

    @property
    def tasks_per_step(self) -> float:
        return self.inner.tasks_per_step

    @property
    def cache_is_history(self) -> bool:
        return self.inner.cache_is_history

    @property
    def order_matters(self) -> bool:
        return self.inner.order_matters

    @property
    def cohort(self) -> int | None:
        return self.inner.cohort

    def searched(self, clients: int) -> Mapping[str, Range | Choice]:
        return {"threshold": Range(0.1, 10.0)}

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return ClippedRule(self.inner.build(clients, like, samples), self.threshold)


def _text(method: Method) -> str:
    """As a person types it: a path and numpy's numbers as plain values."""
    if not is_dataclass(method):
        return label(method)
    changed = {name: plain(value) for name, value in settings_of(method).items()}
    return label(replace(method, **changed))


class ClippedRule(Rule):
    """Any rule, behind a door that shortens what comes in."""

    def __init__(self, rule: Rule, threshold: float) -> None:
        self._rule, self._threshold = rule, threshold
        self.optimizer = rule.optimizer

    def absorb(self, arrival: Arrival) -> bool:
        return self._rule.absorb(self._shortened(arrival))

    def advance(self, arrival: Arrival, model: Vector, lr: float) -> bool | None:
        return self._rule.advance(self._shortened(arrival), model, lr)

    def _shortened(self, arrival: Arrival) -> Arrival:
        norm = length(arrival.update)
        if norm <= self._threshold:
            return arrival
        return replace(arrival, update=arrival.update * (self._threshold / norm))

    def direction(self) -> Vector:
        return self._rule.direction()

    def clear(self) -> None:
        self._rule.clear()

    def join(self, clients: int, weight: float = 1.0) -> None:
        self._rule.join(clients, weight)

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self._rule.dispatched(clients, version)

    def leave(self, client: int) -> bool:
        return self._rule.leave(client)

    def lost(self, client: int) -> bool:
        return self._rule.lost(client)

    def give_up(self) -> bool:
        return self._rule.give_up()

    @property
    def audience(self) -> Audience:
        return self._rule.audience

    @property
    def active(self) -> frozenset[int] | None:
        return self._rule.active

    def rate(self, lr: float) -> float:
        return self._rule.rate(lr)

    def state_dict(self) -> State:
        return self._rule.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._rule.load_state_dict(state)
