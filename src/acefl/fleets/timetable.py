"""Who arrives when, for many arrivals at once.

While whoever arrives is sent work at once, and nobody else is, a task begins when the one before it ends. So a client's
arrivals are sums, and the order of all is a sort: no heap, and no call per arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from acefl.core import rng as keyed
from acefl.fleets.scenario import Durations

Task = tuple[float, int, int, int]  # when it arrives, its id, the client, the model version


class Timetable:
    """The next arrivals in their order, as a heap of tasks by time and id would give them, to the last bit.

    Lists with an entry per arrival: `clients`, `ids` and `times` of the tasks that end; `dues` and `keys` of those that
    the same clients start then. `place`: the arrival that comes next.

    Args:
        tasks: What every client is at work on.
        visits: How many tasks each has been sent so far.
        first: The id of the task that is sent next.
        durations: How long tasks take.
        keys: The key of each client, which a visit's number makes that of a task.
        count: About how many arrivals to work out.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        visits: Sequence[int],
        first: int,
        durations: Durations,
        keys: keyed.Array,
        count: int,
    ) -> None:
        self.tasks = sorted(tasks, key=lambda task: task[2])  # what each client is at work on at `place`
        self.place, self._first = 0, first
        ends, owner, number = self._ends(visits, durations, count)
        last = np.flatnonzero(np.append(owner[1:] != owner[:-1], True))
        sure = np.flatnonzero(ends < ends[last].min())  # later ones may have others before them
        place = np.full(len(ends), -1)
        order = sure[np.argsort(ends[sure], kind="stable")]
        place[order] = np.arange(len(order))
        first_ids = np.array([task[1] for task in self.tasks])
        order = order[: self._break_ties(order, ends, place, number, owner, first_ids - first)]
        client, visit = owner[order], number[order]
        ids = np.where(visit == 0, first_ids[client], first + place[order - 1])
        self.clients: list[int] = client.tolist()
        self.times: list[float] = ends[order].tolist()
        self.dues: list[float] = ends[order + 1].tolist()
        self.ids: list[int] = ids.tolist()
        self.keys: list[int] = keyed.extend_each(keys[client], np.array(visits)[client] + visit).tolist()

    def __len__(self) -> int:
        """Arrivals that are still to come."""
        return len(self.times) - self.place

    def advance(self, versions: Sequence[int]) -> slice:
        """The next clients have arrived and been sent these versions of the model: the entries of their arrivals."""
        came = slice(self.place, self.place + len(versions))
        ids = range(self._first + came.start, self._first + came.stop)
        for client, due, task_id, version in zip(self.clients[came], self.dues[came], ids, versions, strict=True):
            self.tasks[client] = due, task_id, client, version
        self.place = came.stop
        return came

    def _ends(
        self, visits: Sequence[int], durations: Durations, count: int
    ) -> tuple[keyed.Array, keyed.Array, keyed.Array]:
        """When tasks end, client after client; whose they are, and their places among that client's."""
        share = count / math.fsum(1.0 / mean for mean in durations.mean)
        expected = share / np.array(durations.mean)
        counts = (expected + 2.0 * np.sqrt(expected)).astype(np.int64) + 3  # with the task that is under way
        owner = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        number = np.arange(len(owner)) - starts[owner]
        ends = durations.each(owner, np.array(visits)[owner] + number - 1)
        ends[starts] = [task[0] for task in self.tasks]
        for start, size in zip(starts.tolist(), counts.tolist(), strict=True):
            np.add.accumulate(ends[start : start + size], out=ends[start : start + size])  # from left to right
        return ends, owner, number

    @staticmethod
    def _break_ties(
        order: keyed.Array,
        ends: keyed.Array,
        place: keyed.Array,
        number: keyed.Array,
        owner: keyed.Array,
        ids: keyed.Array,
    ) -> int:
        """Put those that end at the same time into the order in which they were sent; how many are then in order."""
        times = ends[order]
        if len(order) == 0 or not (times[1:] == times[:-1]).any():
            return len(order)
        starts = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            if stop - start > 1:
                tied = order[start:stop]
                sent = np.where(number[tied] == 0, ids[owner[tied]], place[tied - 1])  # ids of tasks under way: below 0
                if sent.max() >= start:  # sent at the very time at which it ends
                    return start
                order[start:stop] = tied[np.argsort(sent)]
                place[order[start:stop]] = np.arange(start, stop)
        return len(order)
