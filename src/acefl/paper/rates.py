"""A learning rate by the paper's grid: a look at every decade, then the neighbours of the best.

The paper tunes lr = c * sqrt(n / T) over c in {10, 5, 2, 1, 0.5, 0.2, 0.1}. Every method here starts from c = 1, 0.1,
and so on down to 0.0001, and goes on by the same 1-2-5 pattern from the best of them until that has a worse neighbour
on either side. A walk from one end would be cheaper and wrong: far above its best rate a method stays near chance,
scores there go up and down by noise, and a walk stops at the first dip. Which rates come next depends on the scores
alone, so a search resumes from recorded scores as if it had never stopped.
"""

from __future__ import annotations

from acefl.studies.search import GridSearch

LARGEST = 3  # c = 10, the upper end of the paper's grid
SMALLEST = -15  # c = 1e-5: below this nothing is learnt in any budget here
DECADES = (-12, -9, -6, -3, 0)  # c = 0.0001 to 1


def c_of(place: int) -> float:
    """The 1-2-5 series by its place: 0 is 1, -1 is 0.5, -2 is 0.2, 3 is 10."""
    power, digit = divmod(place, 3)
    return float(f"{(1, 2, 5)[digit]}e{power}")


def search(unit: float, first: tuple[int, ...] = DECADES) -> GridSearch:
    """The search over c times `unit`."""
    return GridSearch(lambda place: c_of(place) * unit, first, ends=(SMALLEST, LARGEST))
