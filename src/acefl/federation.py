"""A run in wall-clock time, with real clients: what surrounds the one loop when time cannot be simulated.

Evaluation goes on in a thread of its own and training never waits for it; when one evaluation is not over by the time
the next is due, the next is left out.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from acefl.admission import Gate, NormLimit
from acefl.calls import record_of
from acefl.checkpoint import Every
from acefl.errors import NothingInFlight, require
from acefl.loop import Fleet, run
from acefl.optimizers import Optimizer
from acefl.record import CHECKPOINT, FORMAT, Events, Run, machine, plain
from acefl.rules import label
from acefl.rundir import RunDirectory, reopen, start
from acefl.schedules import Schedule, per_step
from acefl.server import Server
from acefl.simulation import Observer
from acefl.state import lending
from acefl.stop import Stop
from acefl.tasks.base import Task, by_speed
from acefl.timing import fastest, slowest
from acefl.types import Arrival, RuleSettings, State, Step, Vector

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("acefl")


@dataclass(frozen=True, slots=True)
class Trip:
    """What a fleet knows of a task beside its result."""

    sent: float  # when the model went out
    uplink: int = 0  # bytes of the update as it travelled
    downlink: int = 0  # bytes of the model as it travelled


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that could not even become an arrival."""

    client: int
    trained_on: int
    reason: str
    trip: Trip


class RealFleet(Fleet, Protocol):
    """Clients that exist: some may join later, some answers are no answers, and connections want closing."""

    @property
    def clients(self) -> int:
        """How many clients have been seen so far."""
        ...

    def attach(self, server: Server) -> None:
        """The server to tell about clients that join."""
        ...

    def heard(self, arrival: Arrival, reason: str) -> Trip:
        """The server has accepted the arrival (empty reason) or refused it."""
        ...

    def refusals(self) -> list[Refusal]:
        """Answers refused since the last call before they reached the server."""
        ...

    def close(self) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


@dataclass(frozen=True)
class Judgement:
    """What an evaluation found: metrics of the model, and (where known) each client's own.

    `loss` and `accuracy` are on a client's own data, the held-out ones on data that it does not train on.
    """

    metrics: dict[str, float]
    loss: dict[int, float] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    heldout_loss: dict[int, float] = field(default_factory=dict)
    heldout_accuracy: dict[int, float] = field(default_factory=dict)


_SCORES = ("loss", "accuracy", "heldout_loss", "heldout_accuracy")  # of clients


Judge = Callable[[Vector, int], Judgement | None]  # a model and its version


def judge_by(task: Task) -> Judge:
    """Evaluation by a task that has all the data: the model, and every client by itself."""

    def judge(model: Vector, version: int) -> Judgement:
        found = task.evaluate(model)
        scores = {}
        for column, values in found.per_client().items():
            scored = found.scored(column).tolist()
            scores[column] = {client: value for client, value in enumerate(values.tolist()) if scored[client]}
        return Judgement(dict(found.metrics), **scores)

    return judge


class TravelEvents(Events):
    """One row per answer, with when its task was sent and how many bytes went either way."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.uplink, self.downlink = array("d"), array("q"), array("q")

    def travelled(self, trip: Trip) -> None:
        """Beside each `add`."""
        self.sent.append(trip.sent)
        self.uplink.append(trip.uplink)
        self.downlink.append(trip.downlink)

    def frame(self) -> pd.DataFrame:
        return super().frame().assign(sent=self.sent, uplink=self.uplink, downlink=self.downlink)

    @property
    def _columns(self) -> list[array[Any]]:
        return [*super()._columns, self.sent, self.uplink, self.downlink]

    def load_state_dict(self, state: State) -> None:
        self.sent, self.uplink, self.downlink = array("d"), array("q"), array("q")
        super().load_state_dict(state)


class Watch:
    """Evaluates snapshots of the model at even shares of the budget, in its own thread, and keeps the rows.

    Without `background` the run waits for each, so that none is left out and two runs evaluate the same models.
    """

    def __init__(self, judge: Judge | None, evaluations: int, *, background: bool = True) -> None:
        require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
        self._judge = judge
        self._evaluations = evaluations
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="acefl-evaluate")
        self._background = background
        self._busy: tuple[Step, Future[Judgement | None]] | None = None
        self._done = 0
        self._judged: set[int] = set()  # model versions
        self.rows: dict[int, dict[str, float]] = {}  # by model version
        self.scores: dict[str, dict[int, float]] = {name: {} for name in _SCORES}  # of clients, the last known

    def look(self, step: Step, spent: float, model: Vector) -> bool:
        """Start an evaluation if one is due and none is going on; True when one was started."""
        if spent * self._evaluations < self._done or self._busy is not None:
            return False
        self._done = math.floor(spent * self._evaluations + 1e-9) + 1
        self._start(step, model)
        return True

    def _start(self, step: Step, model: Vector) -> None:
        self._judged.add(step.version)
        if self._judge is not None:
            self._busy = step, self._pool.submit(self._judge, model.clone(), step.version)
        else:
            self.add(step, Judgement({}))

    def finished(self, means: Callable[[], list[float]], wait: bool = False) -> dict[str, float] | None:
        """The row of an evaluation that is over, or None. `means`: every client's mean task time so far."""
        if self._busy is None or not (wait or not self._background or self._busy[1].done()):
            return None
        (step, future), self._busy = self._busy, None
        judgement = future.result()
        return self.add(step, judgement, means()) if judgement is not None else None

    def add(self, step: Step, judgement: Judgement, means: Sequence[float] = ()) -> dict[str, float]:
        """Keep what was found out about the model of this step, beside what is known about it already."""
        place: dict[str, float] = {"step": step.version, "arrival": step.arrivals, "time": step.time}
        row = self.rows.setdefault(step.version, place)
        row.update(judgement.metrics)
        for name in _SCORES:
            values: dict[int, float] = getattr(judgement, name)
            self.scores[name].update(values)
            if values and means:
                slow, fast, worst, unscored = by_speed(name)
                row[slow] = _mean(values, slowest(means))
                row[fast] = _mean(values, fastest(means))
                row[worst] = min(values.values()) if name.endswith("accuracy") else max(values.values())
                if len(values) < len(means):
                    row[unscored] = len(means) - len(values)
        return row

    def last(self, step: Step, model: Vector, means: Callable[[], list[float]]) -> list[dict[str, float]]:
        """Wait for the evaluation that is going on, and evaluate the final model: training is over."""
        rows = [self.finished(means, wait=True)]
        if step.version not in self._judged:
            self._start(step, model)
            rows.append(self.finished(means, wait=True))
        return [row for row in rows if row is not None]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> State:
        return {
            "done": self._done,
            "rows": [[[name, value] for name, value in row.items()] for row in self.rows.values()],
            **{name: {str(client): score for client, score in own.items()} for name, own in self.scores.items()},
        }

    def load_state_dict(self, state: State) -> None:
        self._done = int(state["done"])
        rows = [{name: value for name, value in row} for row in state["rows"]]
        self.rows = {int(row["step"]): row for row in rows}
        for name in _SCORES:
            self.scores[name] = {int(client): score for client, score in state.get(name, {}).items()}


def _mean(values: dict[int, float], clients: Sequence[int]) -> float:
    """Of those of these clients that have a value; how many clients have none is in the row beside it."""
    known = [values[client] for client in clients if client in values]
    return sum(known) / len(known) if known else math.nan


class Federation:
    """A run in progress on a real fleet: everything that changes, in one place."""

    def __init__(
        self,
        model: Vector,
        rule: RuleSettings,
        fleet: RealFleet,
        *,
        lr: float,
        stop: Stop,
        config: dict[str, Any],
        judge: Judge | None = None,
        evaluations: int = 50,
        samples: list[int] | None = None,
        observers: Sequence[Observer] = (),
        norm_limit: NormLimit | None = None,
        background: bool = True,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        require(
            getattr(rule, "cohort", None) is None,
            f"{label(rule)} draws the clients of a round, which only simulations do; allowed here: cohort=None",
        )
        require(
            not (norm_limit and getattr(rule, "sends_differences", False)),
            f"norm_limit with {label(rule)}, whose clients send changes: they would take a cut one for accepted whole",
        )
        self.fleet, self.stop = fleet, stop
        built = rule.build(fleet.clients, model, samples)
        self.server = Server(
            model,
            built,
            lr,
            fleet.clients,
            gate=Gate(fleet.clients, model, norm=norm_limit),
            on_arrival=self._arrived,
            optimizer=optimizer,
            schedule=schedule.over(fleet.clients, stop, per_step(rule, built)) if schedule else None,
        )
        fleet.attach(self.server)
        self.config = {**configuration(rule, lr, stop, model.numel()), **config}
        self.config |= {
            name: record_of(given) for name, given in (("optimizer", optimizer), ("schedule", schedule)) if given
        }
        self.events = TravelEvents()
        self.watch = Watch(judge, evaluations, background=background)
        self.samples = dict(enumerate(samples or ()))
        self._work: dict[int, tuple[float, int]] = {}  # client -> seconds spent on accepted tasks, their number
        self._observers = list(observers)
        self._seconds = 0.0
        self.step = Step(0, 0, 0.0, False)

    def advance(self) -> Iterator[tuple[Step, float]]:
        """Go on to the end of the budget, one turn of the loop at a time: where it stands, and the share spent."""
        began = time.perf_counter() - self._seconds
        if not self.watch.rows:
            self.watch.look(self.step, 0.0, self.server.model)
            self._evaluated(self.watch.finished(self.mean_times))
        try:
            for step in run(self.server, self.fleet, self.stop):
                self.step = step
                spent = self.stop.progress(step)
                self._refused_before()
                for observer in self._observers:
                    observer.stepped(step, self.server)
                self.watch.look(step, spent, self.server.model)
                self._evaluated(self.watch.finished(self.mean_times))
                self._seconds = time.perf_counter() - began
                yield step, spent
        except NothingInFlight as reason:
            if not self.server.accepted:
                raise
            log.warning("the run ends early: %s", reason)
            self.config["ended"] = str(reason)

    def judged(self, step: Step, judgement: Judgement) -> None:
        """Something was found out elsewhere about the model of an earlier step."""
        self._evaluated(self.watch.add(step, judgement, self.mean_times()))

    def finish(self) -> Run:
        """Evaluate the final model and put everything together."""
        for row in self.watch.last(self.step, self.server.model, self.mean_times):
            self._evaluated(row)
        return self.result()

    def close(self) -> None:
        """Let the clients and the threads go."""
        self.fleet.close()
        self.watch.close()

    def _evaluated(self, row: dict[str, float] | None) -> None:
        if row is not None:
            for observer in self._observers:
                observer.evaluated(row)

    def _arrived(self, arrival: Arrival, reason: str) -> None:
        trip = self.fleet.heard(arrival, reason)
        now = self.fleet.now
        self.events.add(now, arrival, reason)
        self.events.travelled(trip)
        if reason:
            log.warning("refused an update of client %d: %s", arrival.client, reason)
        else:
            seconds, count = self._work.get(arrival.client, (0.0, 0))
            self._work[arrival.client] = seconds + now - trip.sent, count + 1
        for observer in self._observers:
            observer.arrived(arrival, reason)

    def _refused_before(self) -> None:
        """Put what never became an arrival into the same books."""
        for refusal in self.fleet.refusals():
            self.server.count_refusal(refusal.client, refusal.reason)
            nothing = Arrival(refusal.client, self.server.model, refusal.trained_on, self.server.version, -1)
            self.events.add(self.fleet.now, nothing, refusal.reason)
            self.events.travelled(refusal.trip)
            log.warning("refused an answer of client %d: %s", refusal.client, refusal.reason)

    def mean_times(self) -> list[float]:
        """Every client's mean task time in seconds; for one that never answered, all the time there was."""
        done = {client: seconds / count for client, (seconds, count) in self._work.items()}
        return [done.get(client, max(self.fleet.now, 1e-9)) for client in range(self.fleet.clients)]

    def result(self) -> Run:
        rows = [self.watch.rows[version] for version in sorted(self.watch.rows)]
        times = self.mean_times()
        columns = [name for name in _SCORES if self.watch.scores[name] or not name.startswith("heldout_")]
        clients = [
            {
                "client": client,
                "mean_time": times[client],
                "samples": self.samples.get(client, 0),
                "participation": self.server.participation[client],
                **{name: self.watch.scores[name].get(client, math.nan) for name in columns},
            }
            for client in range(len(self.server.participation))
        ]
        losses = [rows[-1][name] for name in ("loss", "client_loss") if name in rows[-1]] if rows else []
        return Run(
            config={**self.config, "clients": len(clients)},
            metrics=rows,
            model=self.server.model,
            steps=self.server.version,
            arrivals=self.server.accepted,
            time=self.fleet.now,
            participation=list(self.server.participation),
            clients=clients,
            events=self.events.frame(),
            refused=dict(self.server.refused),
            refused_by_client={client: dict(why) for client, why in self.server.refused_by_client.items()},
            wall_seconds=self._seconds,
            diverged=not all(map(math.isfinite, losses)),
        )

    def checkpoint(self) -> State:
        """Everything that decides how the run goes on, and what it takes to know that it is this run."""
        return {"config": json.dumps(plain(self.config)), "federation": self.state_dict()}

    def state_dict(self) -> State:
        return {
            "server": self.server.state_dict(),
            "fleet": self.fleet.state_dict(),
            "watch": self.watch.state_dict(),
            "events": self.events.state_dict(),
            "work": [[client, seconds, count] for client, (seconds, count) in self._work.items()],
            "samples": [[client, count] for client, count in self.samples.items()],
            "seconds": self._seconds,
        }

    def load_state_dict(self, state: State) -> None:
        known = len(state["server"]["participation"])
        if known > len(self.server.participation):
            self.server.admit(known)
        self.server.load_state_dict(state["server"])
        self.fleet.load_state_dict(state["fleet"])
        self.watch.load_state_dict(state["watch"])
        self.events.load_state_dict(state["events"])
        self._work = {client: (seconds, count) for client, seconds, count in state["work"]}
        self.samples = {client: count for client, count in state["samples"]}
        self._seconds = float(state["seconds"])
        self.step = Step(self.server.accepted, self.server.version, self.fleet.now, False)


def go(
    federation: Federation,
    after_turn: Callable[[Step, float], None] | None = None,
    before_last: Callable[[], None] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    checkpoint: Every | None = None,
) -> Run:
    """Run to the end and record it in `out`, whatever happens letting the clients go.

    `after_turn` hears where the run stands after each turn of the loop; `before_last` is called before the last
    evaluation. With `checkpoint` the state is saved in `out` now and then, and a run that was interrupted there is gone
    on with.
    """
    try:
        if out is None or checkpoint is None:
            require(checkpoint is None, "checkpoint needs a directory to write to; pass out=")
            run = _complete(federation, after_turn, before_last)
            if out is not None:
                run.save(out)
            return run
        with _claimed(Path(out)) as (directory, interrupted):
            if interrupted:
                _load(federation, directory.load(), out)
            else:
                directory.begin(federation.checkpoint())
            saved = federation.server.accepted

            def save_when_due(step: Step, spent: float) -> None:
                nonlocal saved
                if after_turn is not None:
                    after_turn(step, spent)
                if step.arrivals - saved >= checkpoint.arrivals and spent < 1.0:
                    saved = step.arrivals
                    with lending():
                        directory.save(federation.checkpoint())

            run = _complete(federation, save_when_due, before_last)
            directory.finish(run)
            return run
    finally:
        federation.close()


def _complete(
    federation: Federation,
    after_turn: Callable[[Step, float], None] | None,
    before_last: Callable[[], None] | None,
) -> Run:
    for step, spent in federation.advance():
        if after_turn is not None:
            after_turn(step, spent)
    if before_last is not None:
        before_last()
    return federation.finish()


@contextmanager
def _claimed(out: Path) -> Iterator[tuple[RunDirectory, bool]]:
    """The run's directory, and whether it holds a run that was interrupted."""
    interrupted = any((out / CHECKPOINT).glob("*.safetensors"))
    with reopen(out) if interrupted else start(out) as directory:
        assert directory is not None
        yield directory, interrupted


def _load(federation: Federation, saved: State, out: str | os.PathLike[str]) -> None:
    here, there = plain(federation.config), json.loads(saved["config"])
    for what in ("method", "rule", "lr", "dim"):
        require(here[what] == there[what], f"{what} is {here[what]}; that of the run in {out} was {there[what]}")
    for what in ("optimizer", "schedule"):
        given, had = here.get(what), there.get(what)
        require(given == had, f"{what} is {given}; that of the run in {out} was {had}")
    federation.load_state_dict(saved["federation"])
    log.info("going on from %d arrivals", federation.server.accepted)


def configuration(rule: RuleSettings, lr: float, stop: Stop, dim: int) -> dict[str, Any]:
    """What made a run, as plain JSON, apart from the task and the fleet."""
    known = dataclasses.is_dataclass(rule) and not isinstance(rule, type)
    return {
        "format": FORMAT,
        "method": type(rule).__name__,
        "label": label(rule),
        "rule": dataclasses.asdict(rule) if known else {},  # type: ignore[call-overload]
        "lr": lr,
        "seed": 0,
        "stop": dataclasses.asdict(stop),
        "dim": dim,
        "machine": machine(),
    }
