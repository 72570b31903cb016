"""Clients in virtual time: the `event`, `tick` and `sampled` clocks."""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence

from acefl.core import rng as keyed
from acefl.core.errors import NothingInFlight
from acefl.core.state import snapshot
from acefl.core.turns import Fits, Sent, Turns
from acefl.core.types import Arrival, Event, Left, Lost, State, Vector
from acefl.fleets.base import Fleet
from acefl.fleets.in_flight import InFlight
from acefl.fleets.lazy import LazyWork
from acefl.fleets.scenario import Durations, Scenario, dropouts
from acefl.rules.ace import ClientMemory
from acefl.tasks.base import Task, client_names

_WORK_STREAM, _IDLE_STREAM, _SAMPLE_STREAM = 11, 12, 13
_MOST_AHEAD = 64  # turns: each needs a model of its own for its client's next task


def work_key(seed: int, client: int, visit: int) -> int:
    """The key of all randomness in a client's task: the same in every fleet, so that runs can be replayed."""
    return keyed.key(seed, _WORK_STREAM, client, visit)


def simulated_fleet(task: Task, scenario: Scenario, seed: int, *, differences: bool = False) -> SimulatedFleet:
    """The fleet for the scenario's clock; `differences` makes clients send the change since their last gradient."""
    scenario.check(task.clients)
    kind = SampledFleet if scenario.clock == "sampled" else SimulatedFleet
    if scenario.visits is not None:
        kind = VisitingFleet
    return kind(task, scenario, seed, ClientMemory() if differences else None)


class SimulatedFleet(Fleet):
    """Clients that are sent tasks, and arrive when these end."""

    def __init__(self, task: Task, scenario: Scenario, seed: int, memory: ClientMemory | None) -> None:
        self.durations = Durations(scenario, task.clients, seed, client_names(task))
        self._dropout_at, self._rejoin_at = scenario.dropout_at, scenario.rejoin_at
        self._leavers = dropouts(scenario, task.clients, seed)
        self._left = self._back_again = not self._leavers
        self.loses = bool(self._leavers)
        self.now = 0.0
        self._seed = seed
        self._keys = [keyed.key(seed, _WORK_STREAM, client) for client in range(task.clients)]  # work_key's first part
        self._ticks = scenario.clock == "tick"
        self._slots = scenario.busy(task.clients)
        self._all_busy = self._slots == task.clients
        self._work = LazyWork(task)
        self._memory = memory
        # Whether who arrives is sent work at once, and nothing else is: then turns are known before they come.
        self._regular = self._all_busy and not self._ticks and not self._leavers and memory is None
        self._in_flight = InFlight(self.durations, self._keys)
        self._new = list(range(task.clients))  # never sent anything
        self._idle: list[int] = []  # back from work of an earlier round: of any, while nobody waits for the others
        self._back: list[int] = []  # back from work of this round
        self._visits = [0] * task.clients
        self._uploads = [0] * task.clients  # updates that have left a client, or may have, when it dropped out at work
        self._gone: set[int] = set()
        self._departures: list[Lost | Left] = []  # not reported yet
        self._version = 0
        self._tasks = 0

    @property
    def clients(self) -> int:
        return len(self._visits)

    @property
    def uploads(self) -> list[int]:
        return self._uploads

    def mean_times(self) -> list[float]:
        return self.durations.mean

    def progressed(self, spent: float) -> bool:
        """Clients that drop out at this share of the budget go, and those that rejoin come back."""
        before = self._left, self._back_again
        if not self._left and spent >= self._dropout_at:
            self.drop(self._leavers)
            self._left = True
        if not self._back_again and self._rejoin_at is not None and spent >= self._rejoin_at:
            self.rejoin(self._leavers)
            self._back_again = True
        return (self._left, self._back_again) != before

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int] | None:
        self._version = version
        pools = self._new, self._idle
        if not newcomers_only:
            self._idle += self._back
            self._back.clear()
        sent = []
        if self._all_busy:
            sent = [*self._new, *self._idle]
            for client in sent:
                self._start(client, model, version)
            self._new.clear()
            self._idle.clear()
        while len(self._in_flight) < self._slots and any(pools):
            sent.append(self._draw(pools))
            self._start(sent[-1], model, version)
        return sent

    def _draw(self, pools: Sequence[list[int]]) -> int:
        """A keyed uniform choice: whoever has just finished has the same chance as the others to go next."""
        index = keyed.key(self._seed, _IDLE_STREAM, self._tasks) % sum(len(pool) for pool in pools)
        pool = pools[0] if index < len(pools[0]) else pools[1]
        index -= 0 if pool is pools[0] else len(pools[0])
        pool[index], pool[-1] = pool[-1], pool[index]
        return pool.pop()

    def _start(self, client: int, model: Vector, version: int) -> None:
        visit, task_id = self._visits[client], self._tasks
        when = self._due(client, visit)
        self._visits[client] += 1
        self._tasks += 1
        self._in_flight.push((when, task_id, client, version))
        self._work.add(task_id, client, keyed.extend(self._keys[client], visit), model, version, when)

    def _due(self, client: int, visit: int) -> float:
        """When the task that is sent now will have arrived."""
        return self.now + self.durations.of(client, visit)

    def ahead(self, fits: Fits) -> Turns | None:
        """Arrivals that are computed, until one comes that is not: a client's next task at the earliest."""
        table = self._in_flight.table(self._visits, self._tasks) if self._regular and self._work.batches else None
        if table is None:
            return None
        start, ids, known = table.place, table.ids, self._work.known
        self._work.compute(ids[start])
        stop, most = start, min(start + _MOST_AHEAD, len(ids))
        while stop < most and ids[stop] in known:
            stop += 1
        while stop > start and not fits(stop - start, table.times[stop - 1]):
            stop -= 1
        if stop == start:
            return None
        clients, ids = table.clients[start:stop], ids[start:stop]
        versions = [table.tasks[client][3] for client in clients]
        return Turns(clients, [known[task_id] for task_id in ids], versions, ids, table.times[start:stop])

    def resume(self, sent: Sent) -> None:
        table = self._in_flight.table(self._visits, self._tasks)
        assert table is not None, "turns are taken from a timetable"
        came = table.advance(sent.versions)
        clients, known = table.clients[came], self._work.known
        for task_id, client in zip(table.ids[came], clients, strict=True):
            del known[task_id]
            self._visits[client] += 1
            self._uploads[client] += 1
        if clients:
            first, self._tasks = self._tasks, self._tasks + len(clients)
            self._work.add_many(range(first, self._tasks), table.dues[came], clients, table.keys[came], sent)
            self.now, self._version = table.times[came][-1], sent.versions[-1]
        if sent.held:
            self.known_finite(self._finish())

    def next(self) -> list[Event]:
        if self._departures:
            return self._report_departures()
        if not len(self._in_flight):
            raise self._nothing_in_flight()
        if not self._ticks:
            return [self._finish()]
        self.now = max(self.now + 1.0, float(math.ceil(self._in_flight.soonest)))
        end = self.now
        arrived: list[Event] = []
        while len(self._in_flight) and self._in_flight.soonest <= end:
            arrived.append(self._finish())
        self.now = end
        return arrived

    def _report_departures(self) -> list[Event]:
        departures, self._departures = self._departures, []
        return list(departures)

    def _nothing_in_flight(self) -> NothingInFlight:
        return NothingInFlight(
            f"at time {self.now:g} no client is at work and none can be sent work: "
            f"{len(self._gone)} of {len(self._visits)} have dropped out"
        )

    def _finish(self) -> Arrival:
        when, task_id, client, trained_on = self._in_flight.pop()
        self.now = when
        self._back.append(client)
        self._uploads[client] += 1
        update = self._work.take(task_id)
        if self._memory is not None:
            update = self._memory.difference(client, update)
        return Arrival(client, update, trained_on, self._version, task_id)

    def known_finite(self, arrival: Arrival) -> bool:
        """Whether the batch that the update is of was looked at; changes of two such updates are not looked at."""
        known = self._work.known_finite(arrival.task)  # asked in any case: it is forgotten then
        return self._memory is None and known

    def versions_out(self) -> set[int]:
        """Versions of the model that updates may still come from."""
        return {version for _, _, _, version in self._in_flight.tasks}

    def drop(self, clients: Iterable[int]) -> None:
        """These clients are gone at once: what they are working on is lost, and they get no work until they rejoin.

        Every one of them is reported, at work or not, so that nobody waits for what it would have sent.
        """
        leaving = set(clients) - self._gone
        self._gone |= leaving
        for _, task_id, client, _ in sorted(self._in_flight.tasks):
            if client in leaving:
                self._work.drop(task_id)
                self._uploads[client] += 1
                self._departures.append(Lost(client, task_id))
        for client in self._new:
            if client in leaving:
                self._departures.append(Lost(client, self._tasks))
                self._tasks += 1
        reported = {event.client for event in self._departures}
        self._departures += [Left(client) for client in sorted(leaving - reported)]
        self._in_flight.tasks = [task for task in self._in_flight.tasks if task[2] not in leaving]
        self._new = [client for client in self._new if client not in leaving]
        self._idle = [client for client in self._idle if client not in leaving]
        self._back = [client for client in self._back if client not in leaving]

    def rejoin(self, clients: Iterable[int]) -> None:
        """These clients are back and may be sent work again."""
        back = self._gone.intersection(clients)
        self._gone -= back
        self._back.extend(sorted(back))

    def state_dict(self) -> State:
        return {
            "now": self.now,
            "heap": [list(task) for task in self._in_flight.tasks],
            "new": list(self._new),
            "idle": list(self._idle),
            "back": list(self._back),
            "visits": list(self._visits),
            "uploads": list(self._uploads),
            "gone": sorted(self._gone),
            "departures": [[event.client, getattr(event, "task", None)] for event in self._departures],
            "left": self._left,
            "back_again": self._back_again,
            "version": self._version,
            "tasks": self._tasks,
            "work": self._work.state_dict(),
            "memory": self._memory.state_dict() if self._memory is not None else {},
        }

    def load_state_dict(self, state: State) -> None:
        self.now = float(state["now"])
        self._in_flight.tasks = [(float(when), int(t), int(client), int(v)) for when, t, client, v in state["heap"]]
        self._new, self._idle, self._back = (list(state[name]) for name in ("new", "idle", "back"))
        self._visits, self._uploads = list(state["visits"]), list(state["uploads"])
        self._gone = set(state["gone"])
        self._departures = [
            Left(client) if task_id is None else Lost(client, task_id) for client, task_id in state["departures"]
        ]
        self._left, self._back_again = bool(state["left"]), bool(state["back_again"])
        self._version, self._tasks = int(state["version"]), int(state["tasks"])
        self._work.load_state_dict(state["work"])
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])


class VisitingFleet(SimulatedFleet):
    """Clients that come when a table says so, whoever the server would like to send a model to.

    A visit that begins is sent the model of the arrivals until then, those of the same moment included. A task's number
    is the place of its visit by the time it began, so there is no more state than the other clocks have.
    """

    def __init__(self, task: Task, scenario: Scenario, seed: int, memory: ClientMemory | None) -> None:
        super().__init__(task, scenario, seed, memory)
        self._regular = False
        self._came = scenario.came(task.clients, client_names(task))

    def mean_times(self) -> list[float]:
        """All the time there was over a client's visits, at least one: the slowest are those who come most rarely."""
        counts, last = Counter(client for client, _, _ in self._came), max(end for _, _, end in self._came)
        return [last / max(counts[client], 1) for client in range(self.clients)]

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int]:
        self._version = version
        self._back.clear()
        sent = []
        while self._tasks < len(self._came):
            client, start, _ = self._came[self._tasks]
            if len(self._in_flight) and self._in_flight.soonest <= start:
                break
            self._start(client, model, version)
            sent.append(client)
        return sent

    def _due(self, client: int, visit: int) -> float:
        return self._came[self._tasks][2]

    def _nothing_in_flight(self) -> NothingInFlight:
        return NothingInFlight(f"all {len(self._came):,} visits are over")


class SampledFleet(SimulatedFleet):
    """No queue of work: each arrival is a client drawn at random, on a model as old as the delay law says.

    A client is drawn in proportion to its speed. Its staleness is its task's duration in model versions, at most the
    number of versions kept, which the law exceeds once in a thousand draws.
    """

    def __init__(self, task: Task, scenario: Scenario, seed: int, memory: ClientMemory | None) -> None:
        super().__init__(task, scenario, seed, memory)
        self._regular = False
        self._odds = list(itertools.accumulate(1.0 / mean for mean in self.durations.mean))
        self._history: dict[int, Vector] = {}
        oldest = sorted(
            self.durations.of(c, -1 - k) for c in range(task.clients) for k in range(1000 // task.clients + 1)
        )
        self._kept = int(oldest[-1 - len(oldest) // 1000]) + 1

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> None:
        if version not in self._history:
            self._history[version] = model.clone()
            self._history.pop(version - self._kept, None)
        self._version = version
        self._newcomers_only = newcomers_only

    def next(self) -> list[Event]:
        if self._departures:
            return self._report_departures()
        task_id = self._tasks
        client = self._sample(task_id)
        self.now += 1.0
        visit = self._visits[client]
        if visit == 0 and client in self._new:
            self._new.remove(client)
        age = int(self.durations.of(client, visit))
        trained_on = max(self._version - age, min(self._history))
        self._visits[client] += 1
        self._uploads[client] += 1
        self._tasks += 1
        key = keyed.extend(self._keys[client], visit)
        self._work.add(task_id, client, key, self._history[trained_on], trained_on)
        update = self._work.take(task_id)
        if self._memory is not None:
            update = self._memory.difference(client, update)
        return [Arrival(client, update, trained_on, self._version, task_id)]

    def versions_out(self) -> set[int]:
        return set(self._history)

    def _sample(self, task_id: int) -> int:
        if len(self._gone) == len(self._visits) or (self._newcomers_only and not self._new):
            raise self._nothing_in_flight()
        if self._newcomers_only:
            return self._new[0]
        for attempt in itertools.count():
            u = keyed.uniform(keyed.key(self._seed, _SAMPLE_STREAM, task_id, attempt))
            client = bisect(self._odds, u * self._odds[-1])
            if client not in self._gone:
                return client
        raise AssertionError("unreachable")

    def state_dict(self) -> State:
        history = snapshot(map(str, self._history), lambda version: self._history[int(version)])
        return {**super().state_dict(), "history": history, "newcomers_only": self._newcomers_only}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._history = {int(version): model for version, model in state["history"].items()}
        self._newcomers_only = bool(state["newcomers_only"])
