"""How fast devices are, by name: capability profiles, from what was published.

A profile says how mean task times differ between clients. It is no trace of delays: networks, batteries and what else a
phone does are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

# seconds per step: of both kinds the range was published, and here they lie evenly in it
_JETSONS, _PHONES = (11.0, 12.5, 14.0), (170.0, 171.0, 172.0, 173.0, 174.0)
_FOLD = 4310 / 105  # the best score of 333 phones over the worst: 41
_REACH = NormalDist().inv_cdf(1 - 1 / (2 * 333))  # where the ends of 333 draws lie, in standard deviations
SIGMA = math.log(_FOLD) / (2 * _REACH)  # of the logarithm of a task time


def _edge_flowertune(clients: int) -> list[float]:
    """Seconds per step of EdgeFlowerTune's eight devices, again and again."""
    published = (*_JETSONS, *_PHONES)
    return [published[client % len(published)] for client in range(clients)]


def _phones(clients: int) -> list[float]:
    """Lognormal, at even quantiles between the fastest phone, which takes 1, and the slowest, which takes 41."""
    last = max(clients - 1, 1)
    low = NormalDist().cdf(-_REACH)
    quantiles = (low + (1 - 2 * low) * client / last for client in range(clients))
    return [math.exp(SIGMA * (NormalDist().inv_cdf(quantile) + _REACH)) for quantile in quantiles]


PROFILES: dict[str, Callable[[int], list[float]]] = {"edge-flowertune": _edge_flowertune, "phones": _phones}
DEVICES = tuple(PROFILES)


def task_times(devices: str, clients: int) -> list[float]:
    """Mean task times of so many clients with these devices, the fastest first."""
    return sorted(PROFILES[devices](clients))
