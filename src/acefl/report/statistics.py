"""Which methods seeds can tell apart: the one procedure behind every table that prints something in bold.

Every method sees the same data split, schedule and minibatches on a seed, so methods are compared by their differences
seed by seed, which vary far less than scores do. Of k methods, one is told from another where the mean of their
differences passes two hurdles:

- by the pair's own spread, Student's t at 5 % / (2 (k - 1)): a pair is as noisy as the noisier of the two, so noise
  comes from k - 1 methods at most, each of which may err either way (Bonferroni's inequality);
- by the median spread of all pairs, what the largest difference of k equal methods stays below in 95 % of simulated
  cases (as in Tukey's range test): of many pairs some have a tiny spread of their own by chance.

Methods that are told to be worse drop out and the others are compared anew, at milder hurdles (step-down: Holm, Scand.
J. Stat. 6, 1979; for sets of models: Hansen, Lunde and Nason, Econometrica 79, 2011).

The promise: equally good methods are told apart in at most 5 % of columns. With equal noise the second hurdle alone
keeps it; with unequal noise the first does by an argument that is no proof, so `tests/report/test_statistics.py`
measures it, for noise of all sizes, heavy tails and coarse scores.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.05
_DIGITS = 1e-6  # records of a leaderboard keep six digits: a spread below that is rounding
_CASES, _AT_ONCE = 4000, 200

Scores = Mapping[str, Sequence[float]]  # of a method: one per seed, the same seeds for all; smaller is better


@dataclass(frozen=True)
class Place:
    """What is shown of a method among others."""

    ahead: bool  # better than another
    behind: bool  # worse than another, or diverged on a seed

    @property
    def leads(self) -> bool:
        return self.ahead and not self.behind


def places(scores: Scores) -> dict[str, Place]:
    """What can be shown of every method. Who diverged (a score that is not finite) is behind; the others are tested."""
    left = [method for method, own in scores.items() if all(map(math.isfinite, own))]
    ahead: set[str] = set()
    behind = set(scores) - set(left)
    while len(left) > 1:
        better = _better(np.asarray([scores[method] for method in left], dtype=float))
        if not better.any():
            break
        ahead |= {method for method, row in zip(left, better, strict=True) if row.any()}
        behind |= {method for method, column in zip(left, better.T, strict=True) if column.any()}
        left = [method for method in left if method not in behind]
    return {method: Place(method in ahead, method in behind) for method in scores}


def leaders(scores: Scores, starts: Scores | None = None) -> set[str]:
    """What to print in bold: better than another method, worse than none, and better than the model it started from.

    starts: scores of the starting model; a method without them, or with one that was not measured, is not held to them.
    """
    found = {method for method, place in places(scores).items() if place.leads}
    return {method for method in found if learnt(scores[method], (starts or {}).get(method, ()))}


def learnt(finals: Sequence[float], starts: Sequence[float]) -> bool:
    """Whether scores fell from their starts: a one-sided paired t test at 5 %. True where starts are not known."""
    if not starts or not all(map(math.isfinite, starts)):
        return True
    if not all(map(math.isfinite, finals)):
        return False
    fell = [start - final for final, start in zip(finals, starts, strict=True)]
    rounding = _DIGITS * max(map(abs, [*finals, *starts]))
    if len(fell) < 2:
        return fell[0] > rounding
    spread = max(statistics.stdev(fell), rounding)
    return statistics.fmean(fell) > quantile(LEVEL, len(fell) - 1) * spread / math.sqrt(len(fell))


def why_bold(compared: int, seeds: int, shown: bool, of: str = "method") -> str:
    """The sentence under a table. compared: how many methods (or what they are) it has; shown: whether any is bold."""
    if compared < 2:
        return ""
    if seeds < 2:
        return f"Nothing is bold: one seed tells no {of} from another."
    if not shown:
        return f"Nothing is bold: {seeds} seeds do not tell these {of}s apart."
    return (
        f"Bold: shown to be better than another {of} and worse than none, and (where recorded) better than the "
        f"starting model; the rest is worse or cannot be placed. By differences on the same seed, with equal {of}s "
        f"told apart in at most {LEVEL:.0%} of columns."
    )


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return quantile(0.025, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def same_seed(*by_seed: Mapping[int, float]) -> list[tuple[float, ...]]:
    """The values of each seed that all of them have, side by side."""
    return [tuple(own[seed] for own in by_seed) for seed in by_seed[0] if all(seed in own for own in by_seed)]


@cache
def quantile(tail: float, degrees: int) -> float:
    """What Student's t exceeds with the chance `tail`."""
    from scipy.stats import t

    return float(t.isf(tail, degrees))


def _better(scores: np.ndarray) -> np.ndarray:
    """Row i, column j: whether method i is told to be better than method j. One row of scores per method."""
    methods, seeds = scores.shape
    if seeds < 2:
        return np.zeros((methods, methods), dtype=bool)
    lead, spread, usual = _differences(scores)
    spread = np.maximum(spread, _DIGITS * float(np.abs(scores).max()))
    by_own = quantile(LEVEL / (2 * (methods - 1)), seeds - 1) * spread
    found: np.ndarray = lead > np.maximum(by_own, largest_of_equals(methods, seeds) * usual)
    return found


def _differences(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of scores (..., methods, seeds): by how much i leads j, times the root of the number of seeds; the spread of each
    pair's differences; and the median spread of all pairs."""
    methods, seeds = scores.shape[-2:]
    apart = scores[..., None, :, :] - scores[..., :, None, :]
    spread = apart.std(axis=-1, ddof=1)
    one, other = np.triu_indices(methods, 1)
    usual = np.median(spread[..., one, other], axis=-1)[..., None, None]
    return apart.mean(axis=-1) * math.sqrt(seeds), spread, usual


@cache
def largest_of_equals(methods: int, seeds: int) -> float:
    """What the largest lead among equal, normal methods exceeds in 5 % of cases, in units of the median spread.

    Simulated, always alike; with 4,000 cases the 5 % are known to 0.3 %. Of two methods there is one spread, the pair's
    own, and Student's t has said all.
    """
    if methods == 2:
        return 0.0
    chance = np.random.default_rng([methods, seeds])
    largest = []
    for _ in range(_CASES // _AT_ONCE):
        lead, _spread, usual = _differences(chance.normal(size=(_AT_ONCE, methods, seeds)))
        largest.append((lead / usual).max(axis=(-2, -1)))
    return float(np.quantile(np.concatenate(largest), 1.0 - LEVEL))
