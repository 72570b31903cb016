"""A learning-rate search by one rule for every method; it takes longer where the best rate lies far out."""

from __future__ import annotations

import math

from acefl.errors import require

COARSE, FINE = 4.0, 2.0  # factors between neighbours of the first and the second look
MOST_EXTENSIONS = 6


class LearningRateSearch:
    """Five rates a factor of four apart; as long as the best is at the edge, one more beyond it; then both halves.

    Ask for rates, tell their scores (smaller is better; a run that diverged scores infinity), until `done`.
    """

    def __init__(self, centre: float = 0.25) -> None:
        require(math.isfinite(centre) and centre > 0, f"lr is {centre}; allowed: a finite number above 0")
        self._asked = [centre * COARSE**k for k in range(-2, 3)]
        self.scores: dict[float, float] = {}
        self._new = list(self._asked)
        self._extensions = 0
        self._refined = False

    @property
    def best(self) -> float:
        """The rate with the smallest score; of equals, the smaller rate."""
        return min(self.scores, key=lambda lr: (self.scores[lr], lr))

    @property
    def done(self) -> bool:
        return not self._new and len(self.scores) == len(self._asked) and self._refined

    @property
    def ahead(self) -> int:
        """How many rates it will ask for at the least, beyond those it has asked for."""
        return 0 if self._refined else 2

    def ask(self) -> list[float]:
        """Rates to try now: empty while others are still out, and when the search is over."""
        if not self._new and len(self.scores) == len(self._asked):
            self._extend_or_refine()
        new, self._new = self._new, []
        return new

    def tell(self, lr: float, score: float) -> None:
        self.scores[lr] = score if math.isfinite(score) else math.inf

    def _extend_or_refine(self) -> None:
        if self._refined:
            return
        best = self.best
        beyond = {min(self._asked): best / COARSE, max(self._asked): best * COARSE}.get(best)
        if beyond is not None and self._extensions < MOST_EXTENSIONS:
            self._extensions += 1
            self._new = [beyond]
        else:
            self._refined = True
            self._new = [best / FINE, best * FINE]
        self._asked += self._new
