"""Where a setting is looked for: what a method says of its own, and what `tune` searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Where a number is looked for, on a log scale.

    Args:
        low: Where the first trials begin.
        high: Where they end.
        whole: A whole number of at least 1.
        least: Never below this; later trials may reach beyond `low`.
        most: Never above this; later trials may reach beyond `high`.
    """

    low: float
    high: float
    whole: bool = False
    least: float = 0.0
    most: float = math.inf

    def at(self, share: float) -> float:
        """The value at this share of the way from low to high."""
        value = min(max(self.low * (self.high / self.low) ** share, self.least), self.most)
        return max(1, round(value)) if self.whole else float(f"{value:.4g}")

    def around(self, value: float, part: float) -> Range:
        """A part of the range with the value in its middle; it may reach beyond an end that turned out too tight."""
        half = (self.high / self.low) ** (part / 2)
        return Range(value / half, value * half, self.whole, self.least, self.most)

    def record(self) -> list[Any]:
        return [self.low, self.high]


@dataclass(frozen=True)
class Choice:
    """One of a few values; the first trials take all of them, later ones the best.

    Args:
        values: Plain values, such as words.
    """

    values: Sequence[Any]

    def at(self, share: float) -> Any:
        """The values have equal shares."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def around(self, value: Any, part: float) -> Choice:
        return Choice((value,))

    def record(self) -> list[Any]:
        return list(self.values)


def written(value: Any, digits: int) -> str:
    """A setting's value, a number or a word, for people."""
    return f"{value:.{digits}g}" if isinstance(value, int | float) else str(value)
