"""Natural federations: public data whose clients exist, with their names and a fixed split of each one's rows."""

from __future__ import annotations

from acefl.tasks.natural.cifar100 import cifar100
from acefl.tasks.natural.flights import flights
from acefl.tasks.natural.heart import heart
from acefl.tasks.natural.movielens import movielens, movielens_visits
from acefl.tasks.natural.news import news
from acefl.tasks.natural.reference import centralised
from acefl.tasks.natural.schools import chem97, hsb82, insteval, stops

TASKS = (chem97, cifar100, flights, heart, hsb82, insteval, movielens, news, stops)

__all__ = [
    "centralised",
    "chem97",
    "cifar100",
    "flights",
    "heart",
    "hsb82",
    "insteval",
    "movielens",
    "movielens_visits",
    "news",
    "stops",
]
