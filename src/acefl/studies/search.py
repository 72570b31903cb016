"""A learning-rate search over a grid, whose every next rate follows from the scores so far and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from acefl.core.errors import require

COARSE, FINE = 4.0, 2.0  # factors between neighbours of the first and the second look
MOST_EXTENSIONS = 6


class GridSearch:
    """The places given first; as long as the best is at the edge, one more beyond it; then the best one's neighbours.

    Ask for rates, tell their scores (smaller is better; a run that diverged scores infinity), until `done`. rate: of a
    place on the grid, larger for a larger one. stride: how far beyond an edge, at most `extensions` times. looks: how
    often to look at the neighbours of the best; without a limit, until the best has worse ones on either side.
    """

    def __init__(
        self,
        rate: Callable[[int], float],
        first: Sequence[int],
        *,
        stride: int = 0,
        extensions: int = 0,
        looks: float = math.inf,
        ends: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        self._rate, self._first, self._ends = rate, list(first), ends
        self._stride, self._extensions, self._looks = stride, extensions, looks
        self._places: dict[float, int] = {}  # by rate, of those asked for
        self._looked = False
        self.scores: dict[float, float] = {}
        self.done = False

    @property
    def best(self) -> float:
        """The rate with the smallest score; of equals, the smaller rate."""
        return min(self.scores, key=lambda lr: (self.scores[lr], lr))

    @property
    def ahead(self) -> int:
        """How many rates it will ask for at the least, beyond those it has asked for."""
        return 0 if self._looked else 2

    def ask(self) -> list[float]:
        """Rates to try now: empty while others are still out, and when the search is over."""
        if len(self.scores) < len(self._places):
            return []
        new = {self._rate(place): place for place in (self._next() if self._places else self._first)}
        self._places |= new
        self.done = not new
        return list(new)

    def tell(self, lr: float, score: float) -> None:
        self.scores[lr] = score if math.isfinite(score) else math.inf

    def _next(self) -> list[int]:
        tried = set(self._places.values())
        best = self._places[self.best]
        if not self._looked and self._extensions and best in (min(tried), max(tried)):
            self._extensions -= 1
            return [best - self._stride if best == min(tried) else best + self._stride]
        self._looked = True
        self._looks -= 1
        low, high = self._ends
        beside = [place for place in (best - 1, best + 1) if low <= place <= high and place not in tried]
        return beside if self._looks >= 0 else []


class LearningRateSearch(GridSearch):
    """The search of `compare`, by one rule for every method: five rates a factor of 4 apart, then both halves.

    It takes longer where the best rate lies far out.
    """

    def __init__(self, centre: float = 0.25) -> None:
        require(math.isfinite(centre) and centre > 0, f"lr_centre is {centre}; allowed: a finite number above 0")
        coarse = round(math.log(COARSE, FINE))
        first = [coarse * step for step in range(-2, 3)]
        super().__init__(lambda place: centre * FINE**place, first, stride=coarse, extensions=MOST_EXTENSIONS, looks=1)
