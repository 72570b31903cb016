"""Whose updates make up the model, and how stale they were.

A client's influence is the sum, over all steps so far, of the weights that its updates had in them. Counting arrivals
would not do: under ACE a client that arrives once in a thousand steps still has the same part in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from acefl.probes.shadow import InfluenceShadow
from acefl.timing import slowest
from acefl.types import Arrival, State, Step

if TYPE_CHECKING:
    from acefl.server import Server
    from acefl.simulation import Simulation

Array = npt.NDArray[np.float64]
MOST_GROUPS = 256


class Participation:
    """Adds to every evaluation, and so to `run.history`:

    `influence_gini` (0: all alike, towards 1: one client alone), `influence_clients` (the effective number of clients,
    1 / sum of squared shares), `influence_speed` (rank correlation of influence with speed), `influence_slow` (share of
    the slowest fifth), and `staleness_mean` and `staleness_max` of what arrived since the evaluation before.
    `run.clients` gets each client's share of `influence` and its mean `staleness`. Above 256 clients those of like
    speed are followed in groups.
    """

    def started(self, run: Simulation) -> None:
        self._mean_times = run.mean_times()
        clients = len(self._mean_times)
        order = sorted(range(clients), key=lambda i: (self._mean_times[i], i))
        self._shadow = InfluenceShadow(run.settings, clients, run.task.samples, order, MOST_GROUPS)
        self._waiting: list[tuple[int, int, int] | None] = []  # arrivals not yet given to the shadow; None: a step
        self._visits = np.zeros(clients, dtype=np.int64)
        self._staleness = np.zeros(clients, dtype=np.int64)  # summed over visits
        self._recent = [0, 0, 0]  # arrivals since the last evaluation, their staleness summed, and its maximum

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if not reason:
            self._waiting.append((arrival.client, arrival.trained_on, arrival.version))

    def stepped(self, step: Step, server: Server) -> None:
        if step.stepped:
            self._waiting.append(None)

    def evaluated(self, row: dict[str, float]) -> None:
        shares = self.shares()
        arrivals, total, most = self._recent
        if arrivals:
            row |= {"staleness_mean": total / arrivals, "staleness_max": float(most)}
        self._recent = [0, 0, 0]
        if shares is not None:
            speeds = 1.0 / np.asarray(self._mean_times)
            row["influence_gini"] = gini(shares)
            row["influence_clients"] = effective(shares)
            row["influence_speed"] = rank_correlation(shares, speeds)
            row["influence_slow"] = float(shares[slowest(self._mean_times)].sum())

    def per_client(self) -> dict[str, list[float]]:
        shares = self.shares()
        visits = np.maximum(self._visits, 1)
        nothing = np.zeros(len(visits))
        return {
            "influence": (nothing if shares is None else shares).tolist(),
            "staleness": np.where(self._visits > 0, self._staleness / visits, np.nan).tolist(),
        }

    def state_dict(self) -> State:
        self._catch_up()
        return {
            "shadow": self._shadow.state_dict(),
            "visits": self._visits.tolist(),
            "staleness": self._staleness.tolist(),
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: State) -> None:
        self._shadow.load_state_dict(state["shadow"])
        self._visits, self._staleness = np.asarray(state["visits"]), np.asarray(state["staleness"])
        self._recent = list(state["recent"])

    def shares(self) -> Array | None:
        """Every client's share of influence; None before the first step."""
        self._catch_up()
        each: Array = (self._shadow.sums / self._shadow.size)[self._shadow.group]
        total = float(each.sum())
        return each / total if total > 0 else None

    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            if event is None:
                self._shadow.step()
            else:
                self._shadow.absorb(*event)
        arrivals = np.asarray([event for event in waiting if event is not None], dtype=np.int64).reshape(-1, 3)
        if len(arrivals):
            staleness = arrivals[:, 2] - arrivals[:, 1]
            np.add.at(self._visits, arrivals[:, 0], 1)
            np.add.at(self._staleness, arrivals[:, 0], staleness)
            count, total, most = self._recent
            self._recent = [count + len(staleness), total + int(staleness.sum()), max(most, int(staleness.max()))]


def gini(shares: Sequence[float] | Array) -> float:
    """Half the mean absolute difference between two clients, relative to the mean: 0 when all have the same."""
    ordered = np.sort(np.asarray(shares, dtype=np.float64))
    count, total = len(ordered), float(ordered.sum())
    if total <= 0:
        return 0.0
    ranks = np.arange(1, count + 1)
    return float(((2 * ranks - count - 1) * ordered).sum() / (count * total))


def effective(shares: Sequence[float] | Array) -> float:
    """How many clients with equal shares would be as concentrated: 1 / sum of squared shares."""
    values = np.asarray(shares, dtype=np.float64)
    return float(values.sum() ** 2 / np.square(values).sum())


def rank_correlation(left: Sequence[float] | Array, right: Sequence[float] | Array) -> float:
    """Spearman's; 0 where one side is constant: then nothing goes with anything."""
    a, b = (_ranks(np.asarray(values, dtype=np.float64)) for values in (left, right))
    a, b = a - a.mean(), b - b.mean()
    below = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / below if below > 0 else 0.0


def _ranks(values: Array) -> Array:
    """Ranks, ties sharing their mean; values that differ only by rounding are ties."""
    scale = float(np.abs(values).max()) or 1.0
    _, places, counts = np.unique(np.round(values / scale, 6), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], dtype=np.float64)
