"""Natural federations: public data whose clients exist, with their names and a fixed split of each one's rows."""

from __future__ import annotations

from acefl.tasks.natural.heart import heart
from acefl.tasks.natural.movielens import movielens
from acefl.tasks.natural.reference import centralised
from acefl.tasks.natural.schools import chem97, hsb82, insteval, stops

TASKS = (chem97, heart, hsb82, insteval, movielens, stops)

__all__ = ["centralised", "chem97", "heart", "hsb82", "insteval", "movielens", "stops"]
