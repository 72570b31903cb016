"""Differences between runs of the same seed: what verdicts go by.

Split, schedule and first model are the seed's, so two methods (or two settings) on one seed differ by far less than two
seeds do. A difference is named where the 95 % interval of its mean over seeds leaves zero out; else the two are level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acefl.paper.records import Results
from acefl.report.statistics import half_width, same_seed


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of a difference, and half of its 95 % interval (Student's t; infinite for one seed)."""

    mean: float
    half: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Difference:
        return cls(statistics.fmean(values), half_width(values), len(values))

    @property
    def sign(self) -> int:
        """1 or -1, and 0 where it cannot be told from zero. A single seed has nothing but its own sign."""
        if self.seeds > 1 and abs(self.mean) <= self.half:
            return 0
        return (self.mean > 0) - (self.mean < 0)

    @property
    def nil(self) -> bool:
        """Whether there is no difference on any seed: two names of one run."""
        return self.mean == 0.0 and (self.half == 0.0 or self.seeds == 1)

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" + (f" ± {self.half:.3f}" if math.isfinite(self.half) else "") + f" ({self.seeds})"


def paired(
    results: Results, more: Mapping[str, Any], less: Mapping[str, Any], *, metric: str = "accuracy"
) -> Difference | None:
    """A final metric of the runs with some labels minus that of others, over the seeds that both have."""
    common = same_seed(results.by_seed(metric, **more), results.by_seed(metric, **less))
    return Difference.of([a - b for a, b in common]) if common else None


@dataclass(frozen=True)
class Standing:
    """Where a method stands among others."""

    ahead: Sequence[str]  # of these
    level: Sequence[str]
    behind: Sequence[str]
    seeds: int  # that the fewest of the differences are over

    def __str__(self) -> str:
        parts = {"ahead of": self.ahead, "level with": self.level, "behind": self.behind}
        found = {words: methods for words, methods in parts.items() if methods}
        everybody = len(found) == 1 and len(self.ahead) + len(self.level) + len(self.behind) > 3
        told = "; ".join(f"{words} {'all' if everybody else ', '.join(methods)}" for words, methods in found.items())
        return told + (" (one seed)" if self.seeds == 1 else "")


def standing(
    results: Results, method: str, others: Iterable[str], *, metric: str = "accuracy", larger: bool = True
) -> Standing | None:
    """Of a method against others, seed by seed; None where one of them has no seed in common with it."""
    found = {other: paired(results, {"method": method}, {"method": other}, metric=metric) for other in others}
    gaps = {other: gap for other, gap in found.items() if gap is not None}
    if not gaps or len(gaps) < len(found):
        return None
    ahead, level, behind = (
        [other for other, gap in gaps.items() if gap.sign == (sign if larger else -sign)] for sign in (1, 0, -1)
    )
    return Standing(ahead, level, behind, min(gap.seeds for gap in gaps.values()))


def leading(results: Results, named: Sequence[str], others: Sequence[str], *, metric: str = "accuracy") -> str | None:
    """Whether each of the named is behind none of the others and ahead of some, and where each stands.

    Where nobody is ahead and nobody behind, too few seeds may be all there is to say.
    """
    found = {method: standing(results, method, others, metric=metric) for method in named}
    known = {method: place for method, place in found.items() if place is not None}
    if len(known) < len(named):
        return None
    so = [method for method, place in known.items() if place.ahead and not place.behind]
    if so:
        word = "agrees" if len(so) == len(named) else f"agrees for {', '.join(so)} alone"
    else:
        word = "does not agree" if any(place.behind for place in known.values()) else "cannot be told"
    told = (f"{method} ({results.mean(metric, method=method):.3f}) {place}" for method, place in known.items())
    return f"{word}: {'. '.join(told)}"


def verdict(gaps: Mapping[str, Difference]) -> str | None:
    """Whether differences that the paper has above zero are, and which are not."""
    if not gaps:
        return None
    by_sign = {sign: [name for name, gap in gaps.items() if gap.sign == sign] for sign in (1, 0, -1)}
    so, level, against = by_sign[1], by_sign[0], by_sign[-1]
    if not so:
        word = "does not agree" if against else "cannot be told"
    else:
        word = "agrees" if not against and len(so) > len(level) else "agrees in part"
    rest = {"level": level, "the other way round": against}
    told = "; ".join(f"{words}: {', '.join(names)}" for words, names in rest.items() if names)
    return f"{word}: {len(so)} of {len(gaps)}" + (f" ({told})" if told else "")
