"""What another method would have done with a recorded run: the same clients, at the same times, on other models.

A record says who arrived when, and on which model. That is all of a federation that does not depend on the method, so
it can drive the simulator: each client gets the model that is current when it was sent one in the recorded run, and
arrives when it arrived there. What is learned is computed anew, on the run's own task where acefl can build it, and
else on a stand-in with as many clients: the data of a real federation never was on the server.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from dataclasses import dataclass

from acefl import tasks
from acefl.core.errors import NothingInFlight, require
from acefl.core.names import listed
from acefl.core.rule import Method, Upload
from acefl.core.settings import label
from acefl.core.stop import Stop
from acefl.core.types import Arrival, Event, State, Vector
from acefl.fleets.base import Fleet, Trip
from acefl.fleets.lazy import LazyWork
from acefl.fleets.simulated import work_key
from acefl.rules.ace import ClientMemory
from acefl.runs import record
from acefl.runs.record import Run
from acefl.runs.saving import run_to_end
from acefl.runs.training import Training
from acefl.tasks.base import Task, client_names


@dataclass(frozen=True)
class Sending:
    """One task of the recorded run."""

    client: int
    visit: int  # how often the client had been sent something before
    after: int  # turns that were over when it was sent


@dataclass(frozen=True)
class Trace:
    """A federation's history without its models: turns, each with its time and the tasks that arrived in it."""

    clients: int
    times: list[float]
    turns: list[list[Sending]]
    unanswered: list[Sending]  # under way when the run ended
    tells_dispatches: bool  # not under the sampled clock, where staleness is drawn and nobody is sent anything

    @classmethod
    def of(cls, run: Run) -> Trace:
        """The accepted arrivals of a record, and when each task was sent."""
        events = run.events
        require(not events.empty, "the run has no arrivals to replay")
        together = run.config["scenario"].get("clock") not in ("event", "sampled")  # else every arrival is a turn
        visits: dict[int, int] = {}
        times: list[float] = []
        versions: list[int] = []
        turns: list[list[Sending]] = []
        free: dict[int, int] = {}  # client -> turns that were over when it had last arrived
        trained_on: dict[int, int] = {}  # client -> the version its last arrival trained on
        for row in events.to_dict("records"):
            client, time, version = int(row["client"]), float(row["time"]), int(row["version"])
            visit, visits[client] = visits.get(client, 0), visits.get(client, 0) + 1
            if not row["accepted"]:
                continue
            if not (together and times and (times[-1], versions[-1]) == (time, version)):
                times.append(time)
                versions.append(version)
                turns.append([])
            after = _turns_over(int(row["trained_on"]), versions, free.get(client, 0), times, row.get("sent"))
            turns[-1].append(Sending(client, visit, after))
            free[client], trained_on[client] = len(turns), int(row["trained_on"])
        require(bool(turns), "the run has no accepted arrivals to replay")
        unanswered = []
        for own in run.clients:
            client = int(own["client"])
            last = own.get("last_sent", math.inf)  # an older record does not say: as soon as it was free
            over = max(free.get(client, 0), bisect_left(versions, last) if math.isfinite(last) else 0)
            if last > trained_on.get(client, -1) and over < len(turns):
                unanswered.append(Sending(client, visits.get(client, 0), over))
        return cls(len(run.participation), times, turns, unanswered, run.config["scenario"].get("clock") != "sampled")

    @property
    def arrivals(self) -> int:
        return sum(map(len, self.turns))


def _turns_over(trained_on: int, versions: list[int], free: int, times: list[float], sent: float | None) -> int:
    """How many turns were over when a task was sent: when its client was free, and its model's version had come to be.

    Several turns may have found the same version; records of real federations say when the task was sent.
    """
    made = bisect_left(versions, trained_on)
    over = max(made, free, bisect_left(times, sent) if sent is not None else 0)
    waited = over < len(versions) and versions[over] == trained_on
    return over if waited else min(made, len(versions) - 1)


class ReplayFleet(Fleet):
    """Delivers what a trace says when it says so; the work is computed here, late and together."""

    travels = True

    def __init__(self, trace: Trace, task: Task, seed: int, *, differences: bool = False) -> None:
        self._clients = task.clients
        self.now = 0.0
        self._trace, self._seed = trace, seed
        self._memory = ClientMemory() if differences else None
        self._work = LazyWork(task)
        self._turn = 0
        self._version = 0
        # turns over -> (task, what, turn it arrives in if it does), who was free first being sent its model first
        self._starts: dict[int, list[tuple[int, Sending, int | None]]] = {}
        self._numbers: list[list[int]] = []
        arrived: dict[int, int] = {}  # client -> its last task
        order: dict[int, int] = {}  # task -> the one its client did before; for a first one, before all others
        number = 0
        for turn, sendings in enumerate([*trace.turns, trace.unanswered]):
            answered = turn < len(trace.turns)
            if answered:
                self._numbers.append(list(range(number, number + len(sendings))))
            for sending in sendings:
                self._starts.setdefault(sending.after, []).append((number, sending, turn if answered else None))
                order[number] = arrived.get(sending.client, sending.client - task.clients)
                arrived[sending.client] = number
                number += 1
        for starting in self._starts.values():
            starting.sort(key=lambda entry: order[entry[0]])
        self._sent: dict[int, tuple[float, int]] = {}  # task -> time and version it was sent with
        self._trips: dict[int, Trip] = {}
        self._uploads = [0] * task.clients

    @property
    def clients(self) -> int:
        return self._clients

    @property
    def uploads(self) -> list[int]:
        return self._uploads

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int] | None:
        self._version = version
        starting = self._starts.pop(self._turn, [])
        for number, sending, turn in starting:
            if turn is not None:
                key = work_key(self._seed, sending.client, sending.visit)
                self._work.add(number, sending.client, key, model, version, self._trace.times[turn])
                self._sent[number] = self.now, version
        return [sending.client for _, sending, _ in starting] if self._trace.tells_dispatches else None

    def next(self) -> list[Event]:
        if self._turn == len(self._trace.turns):
            raise NothingInFlight("the recorded run has ended")
        turn, self._turn = self._turn, self._turn + 1
        self.now = self._trace.times[turn]
        return [
            self._arrive(number, sending.client)
            for number, sending in zip(self._numbers[turn], self._trace.turns[turn], strict=True)
        ]

    def _arrive(self, number: int, client: int) -> Arrival:
        update = self._work.take(number)
        if self._memory is not None:
            update = self._memory.difference(client, update)
        self._uploads[client] += 1
        sent, trained_on = self._sent.pop(number)
        size = update.numel() * update.element_size()
        self._trips[number] = Trip(sent, size, size)
        return Arrival(client, update, trained_on, self._version, number)

    def versions_out(self) -> set[int]:
        return {version for _, version in self._sent.values()}

    def acknowledge(self, arrival: Arrival, reason: str) -> Trip:
        return self._trips.pop(arrival.task)

    def state_dict(self) -> State:
        raise NotImplementedError("a replay is short: it starts again")

    def load_state_dict(self, state: State) -> None:
        raise NotImplementedError("a replay is short: it starts again")


def replay(
    run: Run | str | os.PathLike[str],
    rule: Method,
    *,
    lr: float | None = None,
    task: Task | None = None,
    evaluations: int = 50,
    out: str | os.PathLike[str] | None = None,
) -> Run:
    """Train by `rule` on the recorded history of a run; `lr` and `task` are the run's own unless given.

    With the run's own task and method this gives the run's own model, bit for bit, if nothing was lost on the way.
    """
    recorded = run if isinstance(run, Run) else record.load(run)
    trace = Trace.of(recorded)
    built = task or own_task(recorded)
    require(built.clients == trace.clients, f"the task has {built.clients} clients; allowed: the run's {trace.clients}")
    require(
        not rule.rounds,
        f"{label(rule)} decides who works when, which a recorded run has decided already",
    )
    names, own_names = recorded.config.get("names"), client_names(built)
    other = names is not None and own_names is not None and names != own_names
    require(not other, f"the task's clients are {listed(own_names or ())}; the run's were {listed(names or ())}")
    differences = rule.uploads is Upload.CHANGE
    fleet = ReplayFleet(trace, built, int(recorded.config["seed"]), differences=differences)
    training = Training(
        rule,
        fleet,
        lr=recorded.config["lr"] if lr is None else lr,
        stop=Stop(arrivals=trace.arrivals),
        config={
            "seed": recorded.config["seed"],
            "task": built.describe(),
            "scenario": {**recorded.config["scenario"], "replay_of": recorded.config["label"]},
            **({"names": names} if names is not None else {}),
        },
        evaluations=evaluations,
        task=built,
    )
    return run_to_end(training, out=out)


def own_task(run: Run) -> Task:
    """The task a run was on, if acefl can build it."""
    described = run.config["task"]
    require(
        described.get("name") in tasks.TASKS,
        f"the run's task, {described.get('name')!r}, is not one acefl can build; name a stand-in with as many clients "
        f"({len(run.participation)})",
    )
    return tasks.build(described)
