"""How the learning rate changes over a run: a factor that depends on the share of the budget that is spent.

A budget in steps, arrivals or time is treated alike, since `Stop.progress` says how much of it is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from acefl.core.errors import InvalidInput, require_number
from acefl.core.rule import Method
from acefl.core.settings import Registry
from acefl.core.stop import Stop

Factor = Callable[[float], float]  # of the share of the budget spent, from 0 to 1


class Schedule(Protocol):
    """A frozen dataclass of settings that gives the factor for a run."""

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        """`arrivals_per_step` is None where steps take now more, now fewer of them."""
        ...


@dataclass(frozen=True)
class Constant:
    """The learning rate as it is."""

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        return lambda spent: 1.0


@dataclass(frozen=True)
class Sqrt:
    """lr * sqrt(n / T), the ACE paper's rate for n clients and T steps: `lr` is its constant c.

    T is the budget's number of steps, or of arrivals divided by the arrivals that make a step; a budget of time alone
    does not say.
    """

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        if stop.steps is not None:
            steps = float(stop.steps)
        elif stop.arrivals is not None and arrivals_per_step is not None:
            steps = stop.arrivals / arrivals_per_step
        else:
            raise InvalidInput(
                "schedule Sqrt needs the number of steps; allowed: a stop with steps or arrivals, and with steps alone "
                "where a step takes now more arrivals, now fewer (clock tick, rounds)"
            )
        factor = math.sqrt(clients / steps)
        return lambda spent: factor


@dataclass(frozen=True)
class WarmUp:
    """From zero in a straight line to the whole rate, over the first `share` of the budget."""

    share: float = 0.1

    def __post_init__(self) -> None:
        _check_share("share", self.share)

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        return lambda spent: min(1.0, spent / self.share) if self.share else 1.0


@dataclass(frozen=True)
class Cosine:
    """Along half a cosine from the whole rate to `floor` times it, after a warm-up over the first `warmup` of the
    budget."""

    floor: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        require_number("floor", self.floor, lambda floor: 0 <= floor <= 1, "from 0 to 1")
        _check_share("warmup", self.warmup)

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        def factor(spent: float) -> float:
            if spent < self.warmup:
                return spent / self.warmup
            way = (spent - self.warmup) / (1.0 - self.warmup)
            return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(way, 1.0)))

        return factor


def per_step(method: Method, clock: str = "event") -> int | None:
    """Arrivals that make a step, where that is always the same number."""
    return None if clock == "tick" else method.arrivals_per_step


SCHEDULES: dict[str, type[Any]] = {kind.__name__: kind for kind in (Constant, Sqrt, WarmUp, Cosine)}
_REGISTRY: Registry[Schedule] = Registry("schedule", SCHEDULES, "Cosine(warmup=0.1)")
parse, from_record = _REGISTRY.parse, _REGISTRY.from_record  # sqrt, Cosine(warmup=0.1); what a run recorded


def _check_share(name: str, value: float) -> None:
    require_number(name, value, lambda share: 0 <= share < 1, "at least 0 and below 1")
