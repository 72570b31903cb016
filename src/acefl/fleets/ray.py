"""Clients on a Ray cluster: the same loop in wall-clock time, with real asynchrony, on one machine or many.

Each actor builds the task and works for its share of the clients. It has `depth` tasks waiting for it, so that it never
idles while an answer is under way, and no more, so that models are as fresh as they can be: with 4 actors and depth 2
at most 8 models are out, however many clients there are. For small models a call costs more than the work: `together`
clients of an actor then work on one model in one call, more arrivals a second for fewer steps. An actor that dies is
started again and its clients go on; one that keeps dying without an answer leaves its clients to the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from acefl.core.errors import AceflError, NothingInFlight, require
from acefl.core.types import Arrival, Event, Lost, State, Vector
from acefl.fleets.base import Fleet, Trip
from acefl.fleets.simulated import work_key
from acefl.tasks.sources import TaskSource, build_task

log = logging.getLogger("acefl")

SHARED_ABOVE = 1 << 16  # bytes: larger models go into Ray's object store once per version, smaller ones with each call
PATIENCE = 1.0  # seconds: how long one look for answers waits


class _Worker:
    """What runs in an actor."""

    def __init__(self, source: TaskSource, seed: int) -> None:
        torch.set_num_threads(1)
        self._task = build_task(source, seed)
        self._device = self._task.initial().device  # a task's data lies where its model does

    def work(self, model: np.ndarray[Any, Any], clients: list[int], keys: list[int]) -> np.ndarray[Any, Any]:
        """A row of numbers per client."""
        models = torch.tensor(model, device=self._device).expand(len(clients), -1)
        updates: np.ndarray[Any, Any] = self._task.updates(models, clients, keys).cpu().numpy()
        return updates

    def process(self) -> int:
        return os.getpid()


@dataclass
class _Slot:
    """One actor and the clients it works for."""

    actor: Any
    waiting: deque[int]
    busy: int = 0
    deaths: int = 0
    in_a_row: int = 0  # deaths since it last answered


@dataclass(frozen=True)
class _Job:
    """One call of an actor: the same model for some clients, whose tasks have numbers one after another."""

    clients: list[int]
    first_task: int
    version: int
    slot: int
    life: int  # which of the slot's actors has it
    sent: float


class RayFleet(Fleet):
    """Actors as a fleet. `source` describes or builds the task, as for `acefl.compare`; it is built in every actor."""

    virtual = False
    travels = True
    loses = True

    def __init__(
        self,
        source: TaskSource,
        seed: int = 0,
        *,
        clients: int,
        actors: int = 4,
        depth: int = 2,
        together: int = 1,
        gpus: float = 0.0,
        restarts: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require(actors >= 1, f"actors is {actors}; allowed: at least 1")
        require(depth >= 1, f"depth is {depth}; allowed: at least 1")
        require(together >= 1, f"together is {together}; allowed: at least 1")
        import ray

        self._ray = ray
        self._remote = ray.remote(num_cpus=1, num_gpus=gpus)(_Worker)
        self._source, self._seed, self._clock = source, seed, clock
        self._depth, self._together = depth, together
        self._restarts = restarts  # of one actor without an answer, before its clients move to others
        self._clients = clients
        actors = min(actors, clients)
        self._slots = [_Slot(self._start(), deque(range(slot, clients, actors))) for slot in range(actors)]
        self._jobs: dict[Any, _Job] = {}
        self._visits = [0] * clients
        self._uploads = [0] * clients  # tasks sent: what became of each, nobody can tell for certain
        self._new = set(range(clients))
        self._round = 0  # how often models went out to anybody, not to newcomers alone
        self._served = [0] * clients  # in which round a client was last sent one
        self._trips: dict[int, Trip] = {}
        self._tasks = self._version = 0
        self._began = clock()
        self._last_death = ""
        self.now = 0.0

    def _start(self) -> Any:
        return self._remote.remote(self._source, self._seed)

    def ready(self) -> list[int]:
        """Wait until every actor has built its task; their process ids. Time counts from then on.

        One that dies meanwhile is started again, as later.
        """
        asked = [slot.actor.process.remote() for slot in self._slots]
        processes = [self._process(slot, answer) for slot, answer in zip(self._slots, asked, strict=True)]
        self._began = self._clock()
        return processes

    def _process(self, slot: _Slot, answer: Any) -> int:
        while True:
            try:
                return int(self._ray.get(answer))
            except self._ray.exceptions.ActorDiedError as error:
                self._bury(slot, error)
                if self._is_given_up(slot):
                    raise
                answer = slot.actor.process.remote()

    @property
    def actors(self) -> list[Any]:
        """The actors' handles."""
        return [slot.actor for slot in self._slots]

    def drain(self) -> None:
        """Wait for what is under way and drop it: its clients are free, and another server may use the fleet."""
        while self._jobs:
            for event in self.next():
                if isinstance(event, Arrival):
                    del self._trips[event.task]

    @property
    def deaths(self) -> int:
        """How many actors have died."""
        return sum(slot.deaths for slot in self._slots)

    @property
    def clients(self) -> int:
        return self._clients

    @property
    def uploads(self) -> list[int]:
        return self._uploads

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int]:
        self._version = version
        self._round += not newcomers_only
        shared: Any = None
        sent: list[int] = []
        for number, slot in enumerate(self._slots):
            while slot.busy < self._depth and (clients := self._next_clients(slot, newcomers_only)):
                if shared is None:
                    shared = self._share(model)
                self._send(number, slot, clients, shared)
                sent += clients
        return sent

    def _next_clients(self, slot: _Slot, newcomers_only: bool) -> list[int]:
        if not newcomers_only:
            return [slot.waiting.popleft() for _ in range(min(self._together, len(slot.waiting)))]
        chosen = [client for client in slot.waiting if self._is_newcomer(client)][: self._together]
        for client in chosen:
            slot.waiting.remove(client)
        return chosen

    def _is_newcomer(self, client: int) -> bool:
        return client in self._new or self._served[client] < self._round

    def _share(self, model: Vector) -> Any:
        array = model.detach().cpu().numpy().copy()
        return self._ray.put(array) if array.nbytes > SHARED_ABOVE else array

    def _send(self, number: int, slot: _Slot, clients: list[int], model: Any) -> None:
        keys = [work_key(self._seed, client, self._visits[client]) for client in clients]
        if self.on_send is not None:
            self.on_send([str(client) for client in clients], durably=False)  # a call may take less than a sync
        for client in clients:
            self._uploads[client] += 1
            self._visits[client] += 1
            self._served[client] = self._round
        slot.busy += 1
        reference = slot.actor.work.remote(model, clients, keys)
        sent = self._clock() - self._began
        self._jobs[reference] = _Job(clients, self._tasks, self._version, number, slot.deaths, sent)
        self._tasks += len(clients)

    def next(self) -> list[Event]:
        if not self._jobs:
            why = f": the last actor died with {self._last_death}" if self._last_death else ""
            raise NothingInFlight(f"no actor is at work and none can be sent work{why}")
        references = list(self._jobs)
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        if not done:
            done, _ = self._ray.wait(references, num_returns=1, timeout=PATIENCE)
        self.now = self._clock() - self._began
        answers = self._answers(done)
        return [event for reference, answer in answers for event in self._events(self._jobs.pop(reference), answer)]

    def versions_out(self) -> set[int]:
        return {job.version for job in self._jobs.values()}

    def _answers(self, done: list[Any]) -> list[tuple[Any, Any]]:
        try:
            return list(zip(done, self._ray.get(done), strict=True))
        except self._ray.exceptions.RayError:
            return [(reference, self._answer(reference)) for reference in done]

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            job = self._jobs[reference]
            raise AceflError(f"the work of client {job.clients} failed with {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            return error

    def _events(self, job: _Job, answer: Any) -> list[Event]:
        slot = self._slots[job.slot]
        alive = job.life == slot.deaths
        slot.busy -= alive
        tasks = range(job.first_task, job.first_task + len(job.clients))
        if isinstance(answer, BaseException):
            if alive:
                self._bury(slot, answer)
            self._rehome(slot, job.clients)
            return [Lost(client, task) for client, task in zip(job.clients, tasks, strict=True)]
        slot.in_a_row = 0 if alive else slot.in_a_row
        self._rehome(slot, job.clients)
        rows = torch.from_numpy(answer if answer.flags.writeable else answer.copy()).unbind(0)
        trip = Trip(job.sent, answer[0].nbytes, answer[0].nbytes)
        self._trips.update(dict.fromkeys(tasks, trip))
        return [
            Arrival(client, update, job.version, self._version, task)
            for client, update, task in zip(job.clients, rows, tasks, strict=True)
        ]

    def _bury(self, slot: _Slot, error: BaseException) -> None:
        """An actor is dead: start another in its place, or, after too many, leave its clients to the others."""
        slot.deaths += 1
        slot.in_a_row += 1
        slot.busy = 0
        self._last_death = next(iter(str(error).strip().splitlines()), repr(error))
        log.warning("an actor died for the %d. time: %s", slot.deaths, self._last_death)
        if self._is_given_up(slot):
            left = list(slot.waiting)
            slot.waiting.clear()
            self._rehome(slot, left)
        else:
            slot.actor = self._start()

    def _is_given_up(self, slot: _Slot) -> bool:
        """Whether it has died again and again without an answer: a fault that a restart does not mend."""
        return slot.in_a_row > self._restarts

    def _rehome(self, slot: _Slot, clients: list[int]) -> None:
        """Put clients in line again: where they were, or where the line is shortest; nowhere if no actor is left."""
        homes = [slot] if not self._is_given_up(slot) else [one for one in self._slots if not self._is_given_up(one)]
        for client in clients if homes else ():
            min(homes, key=lambda home: len(home.waiting)).waiting.append(client)

    def acknowledge(self, arrival: Arrival, reason: str) -> Trip:
        self._new.discard(arrival.client)
        return self._trips.pop(arrival.task)

    def close(self) -> None:
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._jobs.clear()

    def state_dict(self) -> State:
        return {
            "now": self.now,
            "visits": list(self._visits),
            "uploads": list(self._uploads),
            "new": sorted(self._new),
            "owed": sorted(client for client in range(self._clients) if self._is_owed(client)),
            "tasks": self._tasks,
        }

    def _is_owed(self, client: int) -> bool:
        """Whether the round has nothing of it yet: it was sent no model in it, or is at work."""
        return self._is_newcomer(client) or any(client in job.clients for job in self._jobs.values())

    def load_state_dict(self, state: State) -> None:
        """What was under way when the state was taken is lost: its clients begin something new."""
        self.now = float(state["now"])
        self._began = self._clock() - self.now
        self._visits, self._new, self._tasks = list(state["visits"]), set(state["new"]), int(state["tasks"])
        self._uploads = list(state["uploads"])
        owed = set(state.get("owed", ()))  # states of earlier versions do not say
        self._round, self._served = 1, [int(client not in owed) for client in range(self._clients)]

    def already_sent(self, tasks: Mapping[str, int]) -> None:
        for name, count in tasks.items():
            self._uploads[int(name)] = max(self._uploads[int(name)], count)
