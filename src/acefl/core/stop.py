"""When a run ends."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from acefl.core.errors import require
from acefl.core.metrics import Target
from acefl.core.types import Step


@dataclass(frozen=True)
class Stop:
    """End after so many accepted arrivals, server steps, or units of time: whichever comes first.

    With a target, end at the first evaluation that reaches it, if that comes before. A target alone might never end a
    run, so there is always a limit too.

    Args:
        arrivals: Accepted arrivals.
        steps: Server steps.
        time: Units of virtual time; seconds on a real fleet.
        target: A metric and the value to reach, as in `("accuracy", 0.9)` or `"accuracy=0.9"`: at least this value, or
            at most, by which way the metric is better.
    """

    arrivals: int | None = None
    steps: int | None = None
    time: float | None = None
    target: tuple[str, float] | str | None = None

    def __post_init__(self) -> None:
        limits = {"arrivals": self.arrivals, "steps": self.steps, "time": self.time}
        require(any(v is not None for v in limits.values()), "stop has no limit; allowed: arrivals, steps or time")
        for name, value in limits.items():
            if value is not None:
                good = isinstance(value, Real) and math.isfinite(value) and value > 0
                require(good, f"stop {name} is {value!r}; allowed: a finite number above 0")
        if self.target is not None:
            aimed = Target.of(self.target)
            object.__setattr__(self, "target", (aimed.metric, aimed.value))

    @property
    def aim(self) -> Target | None:
        """The target, if there is one."""
        return None if self.target is None else Target.of(self.target)

    def record(self) -> dict[str, Any]:
        """As a record holds it: the limits, and the target if there is one."""
        settings = asdict(self)
        if self.target is None:
            del settings["target"]
        return settings

    def progress(self, step: Step) -> float:
        """How much of the budget is spent: 1 when the run is over."""
        return self.spent(step.arrivals, step.version, step.time)

    def spent(self, arrivals: int, steps: int, time: float) -> float:
        """The same from the numbers themselves."""
        spent = 0.0
        if self.arrivals is not None:
            spent = arrivals / self.arrivals
        if self.steps is not None:
            spent = max(spent, steps / self.steps)
        if self.time is not None:
            spent = max(spent, time / self.time)
        return spent
