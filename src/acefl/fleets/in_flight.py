"""The tasks that clients are at work on, by when they end."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from acefl.fleets.scenario import Durations
from acefl.fleets.timetable import Task, Timetable

_FIRST, _MOST = 512, 8_192  # arrivals to work out at once: few at first, since somebody may look at the run soon


class InFlight:
    """A heap, or a timetable of what comes next while that is known; nobody can tell but by the time it takes.

    Ties break by sequence number, not by client.
    """

    def __init__(self, durations: Durations, keys: Sequence[int]) -> None:
        self._durations, self._keys = durations, np.array(keys, np.uint64)
        self._heap: list[Task] = []
        self._table: Timetable | None = None
        self._count = _FIRST
        self._out = 0  # of clients in the timetable: whose task has ended, but who has not been sent the next one yet

    def __len__(self) -> int:
        return len(self._heap) if self._table is None else len(self._keys) - self._out

    @property
    def tasks(self) -> list[Task]:
        """All of them; sorted is a heap."""
        if self._table is None:
            return self._heap
        resting = self._table.clients[self._table.place] if self._out else None
        return sorted(task for task in self._table.tasks if task[2] != resting)

    @tasks.setter
    def tasks(self, tasks: Iterable[Task]) -> None:
        self._heap, self._table, self._out = sorted(tasks), None, 0

    @property
    def soonest(self) -> float:
        """When the next one ends."""
        if self._table is not None and (self._out or not len(self._table)):
            self._to_heap()
        return self._heap[0][0] if self._table is None else self._table.times[self._table.place]

    def pop(self) -> Task:
        """The one that ends next."""
        table = self._table
        if table is None or self._out or not len(table):
            return heapq.heappop(self._to_heap())
        self._out = 1
        return table.tasks[table.clients[table.place]]

    def push(self, task: Task) -> None:
        table = self._table
        if table is not None and self._out and table.clients[table.place] == task[2]:
            table.advance([task[3]])  # its time and its id are in the timetable
            self._out = 0
        else:
            heapq.heappush(self._to_heap(), task)

    def table(self, visits: Sequence[int], first: int) -> Timetable | None:
        """What comes next, if every client is at work and is sent the next task as soon as it is back: the ids of these
        begin with `first`. Who has taken turns from it calls its `advance`. None: it cannot be told."""
        if self._out or len(self) < len(self._keys):
            return None
        if self._table is None or not len(self._table):
            self._count = min(2 * self._count, _MOST) if self._table is not None else _FIRST
            count = max(self._count, 4 * len(self._keys))
            made = Timetable(self.tasks, visits, first, self._durations, self._keys, count)
            if not len(made):
                self._to_heap()
                return None
            self._table = made
        return self._table

    def _to_heap(self) -> list[Task]:
        if self._table is not None:
            self.tasks = self.tasks
        return self._heap
