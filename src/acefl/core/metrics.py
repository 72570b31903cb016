"""Which way a metric is better, and when a run first had a value that was aimed at.

A metric has one name in a record, and others made of it: `f1` of a task gives `client_f1` (the mean over clients),
`slow_f1`, `fast_f1`, `worst_f1`, and each of these with `heldout_` before it. They all go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from acefl.core.errors import InvalidInput, require

LARGER, SMALLER = "larger", "smaller"
Better = Mapping[str, str]  # a metric's name -> LARGER or SMALLER, where that was declared
Row = Mapping[str, float]  # an evaluation: step, arrival, time and metrics

HELD_OUT, GROUPS = "heldout_", ("client_", "slow_", "fast_", "worst_")
PLACE = ("step", "arrival", "time")  # of an evaluation in its run
_KNOWN = {
    **dict.fromkeys(("accuracy", "auc", "auroc", "f1", "precision", "r2", "recall"), LARGER),
    **dict.fromkeys(("error", "gap", "grad_norm", "loss", "mae", "mse", "perplexity", "rmse"), SMALLER),
}


def base(name: str) -> str:
    """The metric that a name is made of: `f1` of `heldout_slow_f1`."""
    rest = name.removeprefix(HELD_OUT)
    return next((rest.removeprefix(group) for group in GROUPS if rest.startswith(group)), rest)


def direction(name: str, better: Better) -> str | None:
    """LARGER or SMALLER, as declared or as everybody knows it; None: nobody has said."""
    for own in (name, base(name)):
        if found := better.get(own) or _KNOWN.get(own):
            return found
    return None


def is_larger_better(name: str, better: Better) -> bool:
    """Of a metric of which it is known; `InvalidInput` of another."""
    found = direction(name, better)
    example = f"Evaluation(..., better={{{name!r}: 'smaller'}})"
    require(found is not None, f"which way {name!r} is better is not known; a task declares it: {example}")
    return found == LARGER


def check_measured(name: str, row: Row, better: Better) -> None:
    """Refuse a metric that evaluations do not measure, or of which nobody knows which way it is better."""
    allowed = sorted(one for one in row if one not in PLACE and direction(one, better) is not None)
    require(name in row and name not in PLACE, f"no metric {name!r} here; allowed: {', '.join(allowed)}")
    is_larger_better(name, better)


@dataclass(frozen=True)
class Reached:
    """When a target was first reached: at an evaluation, nothing in between is guessed.

    Args:
        time: In the fleet's time.
        arrivals: Accepted arrivals until then.
        steps: Server steps until then.
    """

    time: float
    arrivals: int
    steps: int


@dataclass(frozen=True)
class Target:
    """A value to reach of a metric."""

    metric: str
    value: float

    @classmethod
    def of(cls, given: object) -> Target:
        """From `("accuracy", 0.9)`, or as one types it: `accuracy=0.9`."""
        parts = given.split("=") if isinstance(given, str) else given
        pair = list(parts) if isinstance(parts, list | tuple) and len(parts) == 2 else ["", math.nan]
        try:
            found = cls(str(pair[0]).strip(), float(str(pair[1])))
        except (TypeError, ValueError):
            found = cls("", math.nan)
        good = bool(found.metric) and math.isfinite(found.value)
        require(good, f"target is {given!r}; allowed: a metric and a finite number, as in accuracy=0.9")
        return found

    def words(self, better: Better) -> str:
        """`accuracy ≥ 0.9`."""
        return f"{self.metric} {'≥' if is_larger_better(self.metric, better) else '≤'} {self.value:g}"

    def is_reached(self, row: Row, better: Better) -> bool:
        found = row.get(self.metric)
        if found is None or math.isnan(found):
            return False
        return found >= self.value if is_larger_better(self.metric, better) else found <= self.value

    def first(self, rows: Iterable[Row], better: Better) -> Reached | None:
        """Where the first evaluation stands that reaches it; None: none does."""
        for row in rows:
            if self.is_reached(row, better):
                return Reached(float(row["time"]), int(row["arrival"]), int(row["step"]))
        return None


def declared(better: object) -> dict[str, str]:
    """What a record or a task says of its metrics, checked."""
    if not isinstance(better, Mapping):
        raise InvalidInput(f"better is {better!r}; allowed: metrics by name, each 'larger' or 'smaller'")
    for name, way in better.items():
        require(way in (LARGER, SMALLER), f"better of {name} is {way!r}; allowed: {LARGER}, {SMALLER}")
    return {str(name): str(way) for name, way in better.items()}
