"""Whose updates make up the model, and how stale they were.

A client's influence is the sum, over all steps so far, of the weights that its updates had in them. Counting arrivals
would not do: under ACE a client that arrives once in a thousand steps still has the same part in every step.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from acefl.core.types import State, Step
from acefl.fleets.scenario import slowest
from acefl.probes.influence import Influence, Whole
from acefl.runs.observers import Observer

if TYPE_CHECKING:
    from acefl.core.server import Server
    from acefl.runs.observers import RunInProgress

Array = npt.NDArray[np.float64]
MOST_GROUPS = 256


class Participation(Observer):
    """Adds to every evaluation, and so to `run.history`:

    `influence_gini` (0: all alike, towards 1: one client alone), `influence_clients` (the effective number of clients,
    1 / sum of squared shares), `influence_speed` (rank correlation of influence with speed), `influence_slow` (share of
    the slowest fifth), and `staleness_mean`, `_median`, `_p90` and `_max` of what arrived since the evaluation before.
    `run.clients` gets each client's share of `influence`, its mean `staleness`, and that one's median, 90th percentile
    and maximum. Above 256 clients those of like speed are followed in groups.

    Of real clients the speed is what was measured so far. When one joins, influence is summed up anew as if it had been
    known from the start.

    All of it comes from the log of arrivals that a run keeps anyway, read at evaluations: watching costs an arrival
    nothing.
    """

    each_turn = False

    def started(self, run: RunInProgress) -> None:
        self._run = weakref.ref(run)  # which holds this probe
        self._settings, self._samples, self._events = run.method, run.samples, run.events
        self._version = 0
        self._shown = 0  # arrivals before the last evaluation
        self._follow(self._mean_times())

    def _mean_times(self) -> list[float]:
        run = self._run()
        assert run is not None, "it is the run that asks"
        return run.mean_times()

    def _follow(self, mean_times: Sequence[float]) -> None:
        """Follow these clients, from the first arrival on."""
        self._clients = len(mean_times)
        order = sorted(range(self._clients), key=lambda i: (mean_times[i], i))
        self._influence = Influence(self._settings, self._clients, self._samples, order, MOST_GROUPS)
        self._followed = 0  # arrivals whose step is made, and known to the shadow
        self._sent: list[tuple[int, int, int]] = []  # (arrivals before it, client, version): models sent since then

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        if self._influence.goes_by_dispatch:
            self._sent += [(len(self._events.time), client, version) for client in clients]

    def passed(self, clients: Sequence[int], versions: Sequence[int]) -> None:
        if self._influence.goes_by_dispatch:
            first = len(self._events.time) - len(clients) + 1
            self._sent += zip(itertools.count(first), clients, versions)  # the last may be sent none

    def stepped(self, step: Step, server: Server) -> None:
        self._version = step.version

    def evaluated(self, row: dict[str, float]) -> None:
        _, staleness = self._staleness(self._shown)
        if len(staleness) and "staleness_mean" not in row:  # a row may be shown twice, when more is known of its model
            self._shown = len(self._events.time)
            ordered = np.sort(staleness)
            middle, high = (float(ordered[_place(q, len(ordered))]) for q in (0.5, 0.9))
            row |= {"staleness_mean": float(staleness.mean()), "staleness_median": middle}
            row |= {"staleness_p90": high, "staleness_max": float(ordered[-1])}
        shares = self.shares()
        if shares is not None:
            mean_times = self._mean_times()
            row["influence_gini"] = gini(shares)
            row["influence_clients"] = effective(shares)
            row["influence_speed"] = _correlation(_ranks(shares), _ranks(1.0 / np.asarray(mean_times)))
            row["influence_slow"] = float(shares[slowest(mean_times)].sum())

    def per_client(self) -> dict[str, list[float]]:
        shares = self.shares()
        client, staleness = self._staleness(0)
        ordered = staleness[np.lexsort((staleness, client))]
        visits = np.bincount(client, minlength=self._clients)
        came = visits > 0
        first = np.cumsum(visits)[came] - visits[came]
        columns = {"staleness": np.full(self._clients, np.nan)}
        columns["staleness"][came] = np.bincount(client, staleness, self._clients)[came] / visits[came]
        for name, q in (("median", 0.5), ("p90", 0.9), ("max", 1.0)):
            of_client = columns[f"staleness_{name}"] = np.full(self._clients, np.nan)
            of_client[came] = ordered[first + _place(q, visits[came])]
        columns["influence"] = np.zeros(self._clients) if shares is None else shares
        return {name: values.tolist() for name, values in columns.items()}

    def state_dict(self) -> State:
        self._catch_up()
        return {
            "clients": self._clients,
            "influence": self._influence.state_dict(),
            "version": self._version,
            "followed": self._followed,
            "shown": self._shown,
            "sent": [list(entry) for entry in self._sent],
        }

    def load_state_dict(self, state: State) -> None:
        self._follow(self._mean_times()[: int(state["clients"])])
        self._influence.load_state_dict(state["influence"])
        self._version = int(state["version"])
        self._followed, self._shown = int(state["followed"]), int(state["shown"])
        self._sent = [(rows, client, version) for rows, client, version in state["sent"]]

    def shares(self) -> Array | None:
        """Every client's share of influence; None before the first step."""
        self._catch_up()
        each: Array = (self._influence.sums / self._influence.size)[self._influence.group]
        total = float(each.sum())
        return each / total if total > 0 else None

    def _catch_up(self) -> None:
        """Tell the shadow of the arrivals whose step is made; those of an unfinished buffer wait."""
        mean_times = self._mean_times()
        if len(mean_times) > self._clients:
            self._follow(mean_times)
        row, client, trained_on, version = self._accepted(self._followed)
        done = int(np.searchsorted(version, self._version))
        if done:
            self._followed = int(row[done - 1]) + 1
            known = [entry for entry in self._sent if entry[0] < self._followed]
            sent = [(int(np.searchsorted(row, rows)), client, version) for rows, client, version in known]
            del self._sent[: len(known)]
            self._influence.follow(client[:done], trained_on[:done], version[:done], sent)

    def _accepted(self, since: int) -> tuple[Whole, Whole, Whole, Whole]:
        """Row, client, model and version of the accepted arrivals from this row of the log on."""
        log = self._events
        columns = [np.frombuffer(column[since:], np.int64) for column in (log.client, log.trained_on, log.version)]
        row = np.arange(since, len(log.time))
        if log.reasons:
            kept = ~np.isin(row, list(log.reasons))
            row, *columns = (column[kept] for column in (row, *columns))
        return row, columns[0], columns[1], columns[2]

    def _staleness(self, since: int) -> tuple[Whole, Whole]:
        """Whose arrivals came from this row of the log on, and how stale they were."""
        _, client, trained_on, version = self._accepted(since)
        return client, version - trained_on


def _place(q: float, count: Any) -> Any:
    """Where, among so many numbers in order, that one is which a share q of them does not exceed."""
    return np.maximum(np.ceil(q * np.asarray(count) - 1e-9).astype(np.int64) - 1, 0)


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
    return _correlation(*(_ranks(np.asarray(values, dtype=np.float64)) for values in (left, right)))


def _correlation(a: Array, b: Array) -> float:
    a, b = a - a.mean(), b - b.mean()
    below = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / below if below > 0 else 0.0


def _ranks(values: Array) -> Array:
    """Ranks, ties sharing their mean; values that differ only by rounding are ties."""
    scale = float(np.abs(values).max()) or 1.0
    _, places, counts = np.unique(np.round(values / scale, 6), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], dtype=np.float64)
