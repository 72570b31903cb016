"""A learning rate by the paper's grid, walked until the best has worse neighbours: one above, two below.

The paper tunes lr = c * sqrt(n / T) over c in {10, 5, 2, 1, 0.5, 0.2, 0.1}. Every method here starts from the three
values around the printed c = 0.2 and goes on downwards, by the same 1-2-5 pattern, or upwards to the paper's largest,
until the best is not at the edge: the same rule for everybody. Where all of the first rates are far too large, each
leaves the model at chance and their scores are noise, so a run that has not learnt counts as one that diverged, and
the walk goes on downwards. Which rates come next depends on the scores alone, so a search goes on from recorded scores
as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LARGEST = 3  # c = 10, the upper end of the paper's grid
SMALLEST = -15  # c = 1e-5: below this nothing is learnt in any budget here
LEARNT = 0.95  # of the score of the untrained model: what a run must get below, to count
START = (-3, -2, -1)  # c = 0.1, 0.2, 0.5


def c_of(place: int) -> float:
    """The 1-2-5 series by its place: 0 is 1, -1 is 0.5, -2 is 0.2, 3 is 10."""
    power, digit = divmod(place, 3)
    return float(f"{(1, 2, 5)[digit]}e{power}")


@dataclass(frozen=True)
class Walk:
    """Where a search stands: places still to be scored, or the best."""

    wanted: tuple[int, ...]
    best: int | None


def walk(scores: Mapping[int, float]) -> Walk:
    """The next step from the scores so far (smaller is better; infinity or NaN: diverged, or learnt nothing)."""
    missing = tuple(place for place in START if place not in scores)
    if missing:
        return Walk(missing, None)
    finite = {place: score if math.isfinite(score) else math.inf for place, score in scores.items()}
    best = min(finite, key=lambda place: (finite[place], place))
    below = tuple(place for place in (best - 1, best - 2) if place >= SMALLEST and place not in finite)
    if below:
        return Walk(below[:1], None)
    if best == max(finite) and best < LARGEST:
        return Walk((best + 1,), None)
    return Walk((), best)
