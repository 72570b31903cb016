"""What another method would have done with a recorded run: the same clients, at the same times, on other models.

A record says who was sent a model and who arrived when, and what was lost. That is all of a federation that does not
depend on the method, so it can drive the simulator: each client gets the model that is current when it was sent one in
the recorded run, and arrives when it arrived there. What is learned is computed anew, on the run's own task where
acefl can build it, and else on a stand-in with as many clients: the data of a real federation never was on the server.
"""

from __future__ import annotations

import logging
import math
import os
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acefl import tasks
from acefl.core import optimizers, schedules
from acefl.core.errors import NothingInFlight, require
from acefl.core.gate import NormLimit
from acefl.core.journal import ARRIVED, GAVE_UP, JOINED, LOST, RESTARTED, SENT
from acefl.core.loop import run as turns_of
from acefl.core.names import listed
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Factor, Schedule
from acefl.core.settings import build, label, plain, settings_of
from acefl.core.stop import Stop
from acefl.core.types import Arrival, Event, GaveUp, Joined, Lost, Restarted, State, Vector
from acefl.fleets.base import Fleet, Trip
from acefl.fleets.lazy import LazyWork
from acefl.fleets.simulated import work_key
from acefl.rules.ace import ClientMemory
from acefl.runs import record
from acefl.runs.record import Run
from acefl.runs.saving import run_to_end
from acefl.runs.training import Training
from acefl.tasks.base import Task, client_names
from acefl.tasks.own import difference
from acefl.tasks.sources import TaskSource, task_for

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sending:
    """One task of the recorded run."""

    client: int
    visit: int  # how often the client had been sent something before
    after: int  # turns that were over when it was sent
    turn: int | None  # in which it was answered and accepted; None: never


@dataclass(frozen=True)
class Trace:
    """A federation's history without its models: what was sent when; and turns, each with its time and what came in."""

    clients: int
    at_start: int  # of these
    times: list[float]
    turns: list[list[Sending | Event]]
    sendings: list[Sending]  # of those after the same turn, who was sent its model first
    tells_dispatches: bool  # not under the sampled clock, where staleness is drawn and nobody is sent anything

    @classmethod
    def of(cls, run: Run) -> Trace:
        """By the record's journal; where there is none nothing was lost, and arrivals say when tasks were sent.

        Under the sampled clock nobody is sent anything: the journal says what was lost, and arrivals the rest.
        """
        require(not run.events.empty, "the run has no arrivals to replay")
        require(bool(run.events["accepted"].any()), "the run has no accepted arrivals to replay")
        refused = int((~run.events["accepted"].astype(bool)).sum())
        if run.journal is None and refused:
            log.warning("the run kept no journal: what it did about %d refused updates is not replayed", refused)
        sampled = run.config["scenario"].get("clock") == "sampled"
        return cls._of_arrivals(run) if run.journal is None or sampled else cls._of_journal(run, run.journal)

    @classmethod
    def _of_journal(cls, run: Run, journal: pd.DataFrame) -> Trace:
        """An arrival answers what its client was last sent: nobody is sent a task while at work on another."""
        arrived_at = iter(run.events["time"][run.events["accepted"].astype(bool)])
        times: list[float] = []
        turns: list[list[int | Event]] = []  # of arrivals, the number of what they answer
        sent: list[tuple[int, int, int]] = []  # client, visit, after
        answered: dict[int, int] = {}
        last: dict[int, int] = {}  # client -> number of what it was sent last
        visits: Counter[int] = Counter()
        current = 0  # number of the turn that the last of `turns` is
        rows = journal[["turn", "kind", "client"]].itertuples(index=False, name=None)
        _, _, at_start = next(rows)
        for turn, kind, client in rows:
            if kind == SENT:
                last[client] = len(sent)
                sent.append((client, visits[client], len(turns)))
                visits[client] += 1
                continue
            if turn != current:
                current = turn
                times.append(times[-1] if times else 0.0)
                turns.append([])
            if kind == ARRIVED:
                times[-1] = float(next(arrived_at))
                answered[last[client]] = len(turns) - 1
                turns[-1].append(last[client])
            else:
                turns[-1].append(_event(kind, client))
        sendings = [Sending(*what, answered.get(number)) for number, what in enumerate(sent)]
        known = [[sendings[what] if isinstance(what, int) else what for what in turn] for turn in turns]
        return cls(len(run.participation), int(at_start), times, known, sendings, tells_dispatches=True)

    @classmethod
    def _of_arrivals(cls, run: Run) -> Trace:
        together = run.config["scenario"].get("clock") not in ("event", "sampled")  # else every arrival is a turn
        visits: dict[int, int] = {}
        times: list[float] = []
        versions: list[int] = []
        turns: list[list[Sending | Event]] = []
        sendings: list[Sending] = []
        free: dict[int, int] = {}  # client -> turns that were over when it had last arrived
        trained_on: dict[int, int] = {}  # client -> the version its last arrival trained on
        for row in run.events.to_dict("records"):
            client, time, version = int(row["client"]), float(row["time"]), int(row["version"])
            visit, visits[client] = visits.get(client, 0), visits.get(client, 0) + 1
            if not row["accepted"]:
                continue
            if not (together and times and (times[-1], versions[-1]) == (time, version)):
                times.append(time)
                versions.append(version)
                turns.append([])
            after = _turns_over(int(row["trained_on"]), versions, free.get(client, 0), times, row.get("sent"))
            sendings.append(Sending(client, visit, after, len(turns) - 1))
            turns[-1].append(sendings[-1])
            free[client], trained_on[client] = len(turns), int(row["trained_on"])
        for own in run.clients:
            client = int(own["client"])
            last = own.get("last_sent", math.inf)  # an older record does not say: as soon as it was free
            over = max(free.get(client, 0), bisect_left(versions, last) if math.isfinite(last) else 0)
            if last > trained_on.get(client, -1) and over < len(turns):
                sendings.append(Sending(client, visits.get(client, 0), over, None))
        clients = len(run.participation)
        tells = run.config["scenario"].get("clock") != "sampled"
        if run.journal is not None:
            _add_losses(run.journal, times, turns)
        return cls(clients, clients, times, turns, _in_order(sendings, clients), tells)

    @property
    def arrivals(self) -> int:
        """How many updates the recorded run took in."""
        return sum(isinstance(what, Sending) for turn in self.turns for what in turn)

    @property
    def has_losses(self) -> bool:
        """Whether anything but arrivals happened, or some task was never answered."""
        other = any(not isinstance(what, Sending) for turn in self.turns for what in turn)
        return other or any(sending.turn is None for sending in self.sendings)

    @property
    def ends_with_an_arrival(self) -> bool:
        """Whether the last turn took an update in; else something was lost after the last of them."""
        return any(isinstance(what, Sending) for what in self.turns[-1])


def _add_losses(journal: pd.DataFrame, times: list[float], turns: list[list[Sending | Event]]) -> None:
    """Put what was lost into the turn of the arrival that came next; every arrival is a turn."""
    lost: list[Event] = []
    number = 0
    for kind, client in journal[["kind", "client"]].itertuples(index=False, name=None):
        if kind == ARRIVED:
            turns[number][:0] = lost
            lost, number = [], number + 1
        elif kind != JOINED:
            lost.append(_event(kind, client))
    if lost:
        times.append(times[-1])
        turns.append([*lost])


def _event(kind: str, client: int) -> Event:
    if kind == JOINED:
        return Joined(client)
    if kind == LOST:
        return Lost(client, -1)
    assert kind in (RESTARTED, GAVE_UP), f"a journal with {kind!r}"
    return Restarted() if kind == RESTARTED else GaveUp()


def _in_order(sendings: list[Sending], clients: int) -> list[Sending]:
    """Of those sent after the same turn, whoever was free first goes first; given in the order of their arrival."""
    arrived: dict[int, int] = {}  # client -> its last task
    before: dict[Sending, int] = {}  # the one that its client did before; for a first one, before all others
    for number, sending in enumerate(sendings):
        before[sending] = arrived.get(sending.client, sending.client - clients)
        arrived[sending.client] = number
    return sorted(sendings, key=before.__getitem__)


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
        self.loses = trace.has_losses
        self._clients = task.clients
        self.now = 0.0
        self._trace, self._seed = trace, seed
        self._memory = ClientMemory() if differences else None
        self._work = LazyWork(task)
        self._turn = 0
        self._version = 0
        self._number = {sending: number for number, sending in enumerate(trace.sendings)}
        self._starts: dict[int, list[Sending]] = {}  # turns over -> what is sent then
        for sending in trace.sendings:
            self._starts.setdefault(sending.after, []).append(sending)
        self._sent: dict[int, tuple[float, int]] = {}  # task -> time and version it was sent with
        self._trips: dict[int, Trip] = {}
        self._uploads = [0] * task.clients

    @property
    def clients(self) -> int:
        return self._clients

    @property
    def at_start(self) -> int:
        return self._trace.at_start

    @property
    def uploads(self) -> list[int]:
        return self._uploads

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int] | None:
        self._version = version
        starting = self._starts.pop(self._turn, [])
        for sending in starting:
            if sending.turn is not None:
                number, key = self._number[sending], work_key(self._seed, sending.client, sending.visit)
                self._work.add(number, sending.client, key, model, version, self._trace.times[sending.turn])
                self._sent[number] = self.now, version
        return [sending.client for sending in starting] if self._trace.tells_dispatches else None

    def next(self) -> list[Event]:
        if self._turn == len(self._trace.turns):
            raise NothingInFlight("the recorded run has ended")
        turn, self._turn = self._turn, self._turn + 1
        self.now = self._trace.times[turn]
        return [
            self._arrive(what) if isinstance(what, Sending) else self._pass(what) for what in self._trace.turns[turn]
        ]

    def _arrive(self, sending: Sending) -> Arrival:
        number, client = self._number[sending], sending.client
        update = self._work.take(number)
        if self._memory is not None:
            update = self._memory.difference(client, update)
        self._uploads[client] += 1
        sent, trained_on = self._sent.pop(number)
        size = update.numel() * update.element_size()
        self._trips[number] = Trip(sent, size, size)
        return Arrival(client, update, trained_on, self._version, number)

    def _pass(self, event: Event) -> Event:
        if self._memory is not None and isinstance(event, Restarted):
            self._memory = ClientMemory()
        return event

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
    task: Task | TaskSource | None = None,
    evaluations: int = 50,
    out: str | os.PathLike[str] | None = None,
) -> Run:
    """Train by `rule` on the recorded history of a run; `lr` and `task` are the run's own unless given.

    So are optimizer, schedule and norm limit, where the method has room for them. The run's own method has its schedule
    over the run's own budget, whatever that counts; another method has it over the replayed arrivals.

    With the run's own task and method this gives the run's own model, bit for bit, whatever was lost or refused on the
    way (up to rounding where updates travelled in fewer bits, or as changes). A task of one's own is named again
    (`"mymodule:make_task(batch=8)"`), since a record imports nothing; another one than the run's is a stand-in.
    """
    recorded = run if isinstance(run, Run) else record.load(run)
    trace = Trace.of(recorded)
    built = own_task(recorded) if task is None else _given_task(recorded, task)
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
        **_server_settings(recorded, trace, rule),
    )
    training.config |= _same_budget(recorded.config, rule)
    return run_to_end(
        training, out=out, before_last=None if trace.ends_with_an_arrival else lambda: _to_the_end(training)
    )


@dataclass(frozen=True)
class _AsRecorded:
    """A schedule as the recorded run had it: over that run's budget, of which more or less of this may be spent."""

    schedule: Schedule
    budget: Stop
    spent: list[float]  # share of that budget before each accepted arrival
    clients: int

    def over(self, clients: int, stop: Stop, arrivals_per_step: int | None) -> Factor:
        factor = self.schedule.over(self.clients, self.budget, arrivals_per_step)
        arrivals = len(self.spent)
        return lambda spent: factor(self.spent[min(round(spent * arrivals), arrivals - 1)])

    @classmethod
    def of(cls, run: Run, schedule: Schedule, clients: int) -> _AsRecorded:
        budget, accepted = build(Stop, run.config["stop"]), run.events[run.events["accepted"].astype(bool)]
        places = zip(accepted["version"].tolist(), accepted["time"].tolist(), strict=True)
        spent = [min(budget.spent(count, version, time), 1.0) for count, (version, time) in enumerate(places)]
        return cls(schedule, budget, spent, clients)


def _is_own(config: dict[str, Any], rule: Method) -> bool:
    """Whether it is the run's method; where that keeps its rows makes no difference."""
    here, there = plain(settings_of(rule)), config["rule"]
    same = all(here[name] == there.get(name) for name in here if name != "home")
    return same and type(rule).__name__ == config["method"]


def _same_budget(config: dict[str, Any], rule: Method) -> dict[str, Any]:
    """For the replay's record, so that it can be replayed itself."""
    own = "schedule" in config and _is_own(config, rule)
    return {name: config[name] for name in ("schedule", "stop")} if own else {}


def _server_settings(recorded: Run, trace: Trace, rule: Method) -> dict[str, Any]:
    """What the run's server did beside its method, but for what this method has of its own or cannot have."""
    config, found = recorded.config, dict[str, Any]()
    if "optimizer" in config and rule.optimizer is None and rule.uploads is not Upload.MODEL:
        found["optimizer"] = optimizers.from_record(config["optimizer"])
    if "schedule" in config:
        schedule = schedules.from_record(config["schedule"])
        own = _is_own(config, rule)
        found["schedule"] = _AsRecorded.of(recorded, schedule, trace.at_start) if own else schedule
    if "norm_limit" in config and rule.uploads is not Upload.CHANGE:
        found["norm_limit"] = build(NormLimit, config["norm_limit"])
    return found


def _to_the_end(training: Training) -> None:
    """What happened after the last arrival: a loss may have ended a round, and made a step."""
    with suppress(NothingInFlight):
        for step in turns_of(training.server, training.fleet, Stop(arrivals=training.server.accepted + 1)):
            training.step = step


def own_task(run: Run) -> Task:
    """The task a run was on, if acefl can build it."""
    described = run.config["task"]
    own = described.get("imported_from")
    again = f"name it again ({own}), or" if own else "name"
    require(
        own is None and described.get("name") in tasks.TASKS,
        f"the run's task, {described.get('name')!r}, is not one acefl can build; {again} a stand-in with as many "
        f"clients ({len(run.participation)})",
    )
    return tasks.build(described)


def _given_task(run: Run, given: Task | TaskSource) -> Task:
    """The task that was given, for the run's seed. One that is made by the run's own function has to be the run's."""
    built = task_for(given, int(run.config["seed"]))
    described, recorded = plain(built.describe()), run.config["task"]
    names = {str(one.get("imported_from", "")).partition("(")[0] for one in (described, recorded)}
    other = difference(described, recorded) if len(names) == 1 and names != {""} else ""
    require(not other, f"the task is not the run's: {other}")
    return built
