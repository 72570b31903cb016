"""One simulated run, from a task and a method to numbers."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from acefl.admission import Gate, NormLimit
from acefl.core.files import check_replaceable
from acefl.core.rule import Method, Upload
from acefl.core.settings import label, plain, settings_of, step_record
from acefl.errors import NothingInFlight, require
from acefl.fleets.simulated import SimulatedFleet, simulated_fleet
from acefl.loop import dispatch, run
from acefl.observers import Observer, add_columns, call_all, methods
from acefl.optimizers import Optimizer
from acefl.record import FORMAT, Events, Run, machine
from acefl.rules import imported_from
from acefl.schedules import Schedule, per_step
from acefl.server import Server
from acefl.stop import Stop
from acefl.tasks.base import Evaluation, Task
from acefl.timing import Scenario, dropouts, fastest, slowest
from acefl.types import Arrival, State, Step

if TYPE_CHECKING:
    from acefl.checkpoint import Every

log = logging.getLogger("acefl")

Progress = Callable[[float], None]  # called now and then with the fraction of the budget spent


def simulate(
    task: Task,
    rule: Method,
    *,
    lr: float,
    scenario: Scenario | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    evaluations: int = 50,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    checkpoint: Every | None = None,
    norm_limit: NormLimit | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
) -> Run:
    """Train `task` by `rule` in virtual time, evaluating `evaluations` times at even shares of the budget.

    The same arguments give the same run, bit for bit. With `norm_limit` the server refuses or clips updates that are
    out of line with the other clients'. `optimizer` makes the step of the rule's direction (see `acefl.optimizers`),
    `schedule` changes the learning rate over the budget (see `acefl.schedules`). With `out` the run is also saved
    there. With `checkpoint` its state is saved there now and then: if the process is killed, `acefl.resume(out)` goes
    on as if it had not been.

    Args:
        task: What to train: see `acefl.tasks`.
        rule: Settings of a method, such as `ACE()`.
        lr: Learning rate of a server step.
        scenario: Speeds, clock and dropouts; None: `Scenario()`.
        stop: The budget; None: 10,000 arrivals.
        seed: Of everything drawn.
        out: Directory to save the run in.
        evaluations: How many.
        observers: Probes and loggers.
        progress: Called now and then with the share of the budget spent.
        checkpoint: How often to save the state; needs `out`.
        norm_limit: Limit on the length of updates.
        optimizer: Of the server; None: plain descent.
        schedule: Of the learning rate; None: constant.
    """

    _refuse_mixed_up(task, rule, scenario, stop)

    def begin() -> Simulation:
        return Simulation(
            task,
            rule,
            lr=lr,
            scenario=scenario or Scenario(),
            stop=stop or Stop(arrivals=10_000),
            seed=seed,
            evaluations=evaluations,
            observers=observers,
            norm_limit=norm_limit,
            optimizer=optimizer,
            schedule=schedule,
        )

    if checkpoint is not None:
        from acefl.resuming import run_resumably

        require(out is not None, "checkpoint needs a directory to write to; pass out=")
        assert out is not None
        return run_resumably(begin, checkpoint, out, progress)
    if out is not None:
        check_replaceable(Path(out))
    finished = begin().complete(progress)
    if out is not None:
        finished.save(out)
    return finished


def _refuse_mixed_up(task: Any, rule: Any, scenario: Any, stop: Any) -> None:
    """One clear line for the slips people make: a class for its settings, a number for a budget, a name for a task."""
    require(hasattr(task, "updates"), f"task is {task!r}; allowed: a task such as acefl.tasks.digits()")
    name = rule.__name__ if isinstance(rule, type) else rule
    allowed = "a method's settings such as acefl.ACE(), with its parentheses"
    if hasattr(rule, "build") and not isinstance(rule, type):
        name, allowed = type(rule).__name__, f"a method (class {type(rule).__name__}(acefl.Method): ...)"
    require(isinstance(rule, Method), f"rule is {name!r}; allowed: {allowed}")
    allowed = "an acefl.Scenario such as Scenario(spread=30.0)"
    require(scenario is None or isinstance(scenario, Scenario), f"scenario is {scenario!r}; allowed: {allowed}")
    allowed = "an acefl.Stop such as Stop(arrivals=1000)"
    require(stop is None or isinstance(stop, Stop), f"stop is {stop!r}; allowed: {allowed}")


def _with_rounds(rule: Method, scenario: Scenario, clients: int) -> Scenario:
    """The scenario for a method with rounds: who is drawn for one is who is at work."""
    if not rule.rounds:
        return scenario
    require(
        scenario.clock != "sampled",
        f"{label(rule)} waits for its clients, which the sampled clock has none of; allowed: event and tick",
    )
    cohort = rule.cohort
    if cohort is None:
        return scenario
    require(cohort <= clients, f"cohort is {cohort}; allowed: at most the number of clients, {clients}")
    at_work = scenario.concurrency
    require(at_work in (None, cohort), f"concurrency is {at_work}; allowed with {label(rule)}: {cohort}")
    return dataclasses.replace(scenario, concurrency=cohort)


class Simulation:
    """A run in progress: everything that changes, in one place, so that it can be watched, saved and gone on with."""

    def __init__(
        self,
        task: Task,
        rule: Method,
        *,
        lr: float,
        scenario: Scenario,
        stop: Stop,
        seed: int = 0,
        evaluations: int = 50,
        observers: Sequence[Observer] = (),
        norm_limit: NormLimit | None = None,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
        differences = rule.uploads is Upload.CHANGE
        require(
            not (differences and norm_limit),
            f"norm_limit with {label(rule)}, whose clients send changes: one left out or cut would stay missing in the "
            "sum; allowed: methods whose clients send whole updates",
        )
        scenario = _with_rounds(rule, scenario, task.clients)
        self.task, self.settings, self.scenario, self.stop = task, rule, scenario, stop
        self.fleet = simulated_fleet(task, scenario, seed, differences=differences)
        self.events = Events()
        self.observers = list(observers)
        model = task.initial()
        self.server = Server(
            model,
            rule.build(task.clients, model, task.samples),
            lr,
            task.clients,
            gate=Gate(task.clients, model, finite=not model.is_cuda, norm=norm_limit),
            on_arrival=partial(_note, self.fleet, self.events, self.observers),
            on_dispatch=call_all(methods(self.observers, "dispatched")),
            on_lost=call_all(methods(self.observers, "lost")),
            optimizer=optimizer,
            schedule=schedule.over(task.clients, stop, per_step(rule, scenario.clock)) if schedule else None,
        )
        self.config = configuration(task, rule, lr, scenario, stop, seed, model.numel())
        if norm_limit is not None:
            self.config["norm_limit"] = dataclasses.asdict(norm_limit)
        self.config |= step_record(optimizer, schedule)
        self.evaluations = evaluations
        self.watcher = Watcher(task, self.fleet, evaluations)
        self._leavers = dropouts(scenario, task.clients, seed)
        self._left = self._back = not self._leavers
        self._last_step = 0  # arrivals when the model last changed
        self._patience = _patience(rule, self.mean_times()) if stop.arrivals is None and stop.time is None else None
        self._seconds = 0.0
        for started in methods(self.observers, "started"):
            started(self)

    @property
    def samples(self) -> list[int]:
        """Every client's number of samples."""
        return self.task.samples

    def mean_times(self) -> list[float]:
        """Every client's mean task time."""
        return self.fleet.durations.mean

    def complete(self, progress: Progress | None = None, after_turn: Callable[[float], None] | None = None) -> Run:
        """Go on to the end; `after_turn` hears the share of the budget spent after each turn of the loop."""
        shown = 0.0
        for spent in self.advance():
            if after_turn is not None:
                after_turn(spent)
            if progress is not None and (spent - shown >= 0.01 or spent >= 1.0):
                progress(min(spent, 1.0))
                shown = spent
        return self.result()

    def advance(self) -> Iterator[float]:
        """Go on to the end of the budget, one turn of the loop at a time: the share of the budget spent so far.

        Between two turns, and only there, the state can be saved.
        """
        began = time.perf_counter() - self._seconds
        if not self.watcher.metrics:
            self._evaluate(Step(0, 0, 0.0, False), 0.0)
            self.watcher.check_start()
        if self.watcher.diverged:
            return
        step, spent = Step(self.server.accepted, self.server.version, self.fleet.now, False), 0.0
        try:
            for step in run(self.server, self.fleet, self.stop):
                spent = self.stop.progress(step)
                for observer in self.observers:
                    observer.stepped(step, self.server)
                self._come_and_go(spent)
                if spent >= self.watcher.due:
                    self._evaluate(step, spent)
                self._seconds = time.perf_counter() - began
                if self.events.reasons and self._refuses_everything():
                    self._evaluate(step, spent)
                    yield spent
                    return
                self._check_progress(step)
                yield spent
                if self.watcher.diverged:
                    return
        except NothingInFlight as reason:
            if not self.server.accepted:
                raise
            log.warning("the run ends early: %s", reason)
            self.config["ended"] = str(reason)
            self._evaluate(step, spent)
            yield spent

    def _check_progress(self, step: Step) -> None:
        """NothingInFlight for a run whose budget counts steps alone, when no more of them are to be expected."""
        if step.stepped:
            self._last_step = step.arrivals
        elif self._patience is not None and step.arrivals - self._last_step > self._patience:
            raise NothingInFlight(
                f"no step in the last {step.arrivals - self._last_step:,} arrivals, and the budget counts steps alone: "
                f"under the {self.scenario.clock} clock with these delays clients never send what "
                f"{label(self.settings)} waits for; a budget of arrivals or time ends such a run"
            )

    def _refuses_everything(self) -> bool:
        """Whether so many arrivals in a row were refused that none will be accepted, and the budget never spent."""
        rows = len(self.events.time)
        first = rows - 2 * self.task.clients - 100
        if first < 0 or not all(row in self.events.reasons for row in range(first, rows)):
            return False
        reason = self.events.reasons[rows - 1]
        require(reason == "non-finite", f"every update of this task is refused: {reason}")
        return True

    def _come_and_go(self, spent: float) -> None:
        before = self._left, self._back
        if not self._left and spent >= self.scenario.dropout_at:
            self.fleet.drop(self._leavers)
            self._left = True
        if not self._back and self.scenario.rejoin_at is not None and spent >= self.scenario.rejoin_at:
            self.fleet.rejoin(self._leavers)
            self._back = True
        if (self._left, self._back) != before and spent < 1.0:  # whoever can now be sent work gets it at once
            dispatch(self.server, self.fleet)

    def _evaluate(self, step: Step, spent: float) -> None:
        row = self.watcher.evaluate(step, self.server, spent)
        for observer in self.observers:
            observer.evaluated(row)

    def clients(self) -> list[dict[str, float]]:
        """One row per client as of the last evaluation, with what the observers know of it."""
        clients = self.watcher.clients(self.server)
        for row, uploads in zip(clients, self.fleet.uploads, strict=True):
            row["uploads"] = uploads
        return add_columns(clients, self.observers)

    def result(self) -> Run:
        return Run(
            config=self.config,
            metrics=self.watcher.metrics,
            model=self.server.model,
            steps=self.server.version,
            arrivals=self.server.accepted,
            time=self.fleet.now,
            participation=self.server.participation,
            clients=self.clients(),
            events=self.events.frame(),
            refused=dict(self.server.refused),
            refused_by_client={client: dict(why) for client, why in self.server.refused_by_client.items()},
            wall_seconds=self._seconds,
            diverged=self.watcher.diverged or self._refuses_everything(),
        )

    def state_dict(self) -> State:
        return {
            "server": self.server.state_dict(),
            "fleet": self.fleet.state_dict(),
            "watcher": self.watcher.state_dict(),
            "events": self.events.state_dict(),
            "observers": [take() for take in methods(self.observers, "state_dict")],
            "left": self._left,
            "back": self._back,
            "last_step": self._last_step,
            "seconds": self._seconds,
        }

    def load_state_dict(self, state: State) -> None:
        self.server.load_state_dict(state["server"])
        self.fleet.load_state_dict(state["fleet"])
        self.watcher.load_state_dict(state["watcher"])
        self.events.load_state_dict(state["events"])
        for give, own in zip(methods(self.observers, "load_state_dict"), state["observers"], strict=True):
            give(own)
        self._left, self._back = bool(state["left"]), bool(state["back"])
        self._last_step, self._seconds = int(state["last_step"]), float(state["seconds"])


def _patience(rule: Method, mean_times: Sequence[float]) -> int:
    """Arrivals without a step after which none is to be expected: 400 times what comes in while the slowest client does
    the tasks that one step takes, and 2,000 more."""
    return 2_000 + int(400 * rule.tasks_per_step * sum(max(mean_times) / mean for mean in mean_times))


def _note(fleet: SimulatedFleet, events: Events, observers: list[Observer], arrival: Arrival, reason: str) -> None:
    """No method of Simulation: that would tie the server to it, and keep a table's file open after both are dropped."""
    events.add(fleet.now, arrival, reason)
    for observer in observers:
        observer.arrived(arrival, reason)


class Watcher:
    """Evaluates a run without touching it: overall metrics, the slow and the fast fifth of clients, the worst, each."""

    def __init__(self, task: Task, fleet: SimulatedFleet, evaluations: int) -> None:
        self._task = task
        self._mean_times = fleet.durations.mean
        self._slow = torch.tensor(slowest(self._mean_times))
        self._fast = torch.tensor(fastest(self._mean_times))
        self._evaluations = evaluations
        self._done = 0
        self._last: Evaluation | None = None
        self.metrics: list[dict[str, float]] = []

    @property
    def due(self) -> float:
        """The share of the budget at which to evaluate next."""
        return min(self._done / self._evaluations, 1.0)  # the end of the budget is never stepped over

    @property
    def diverged(self) -> bool:
        """Whether the last model was too far gone to go on."""
        return not math.isfinite(self.metrics[-1][self._task.objective])

    def check_start(self) -> None:
        """A loss that is not finite before anything was learnt comes from the data, and no method could be judged."""
        assert self._last is not None
        broken = (~self._last.client_loss.isfinite()).nonzero().flatten().tolist()
        named = ", ".join(map(str, broken[:5])) + (" and others" if len(broken) > 5 else "")
        objective = self._task.objective
        require(not self.diverged, f"{objective} is not finite at the starting model; clients with such data: {named}")

    def evaluate(self, step: Step, server: Server, spent: float) -> dict[str, float]:
        result = self._last = self._task.evaluate(server.model)
        row: dict[str, float] = {"step": step.version, "arrival": step.arrivals, "time": step.time, **result.metrics}
        if result.client_accuracy is not None:
            row["slow_accuracy"] = float(result.client_accuracy[self._slow].mean())
            row["fast_accuracy"] = float(result.client_accuracy[self._fast].mean())
            row["worst_accuracy"] = float(result.client_accuracy.min())
        row["slow_loss"] = float(result.client_loss[self._slow].mean())
        row["fast_loss"] = float(result.client_loss[self._fast].mean())
        row["worst_loss"] = float(result.client_loss.max())
        self.metrics.append(row)
        self._done = math.floor(spent * self._evaluations + 1e-9) + 1
        return row

    def clients(self, server: Server) -> list[dict[str, float]]:
        """One row per client, with its final loss and accuracy on its own data."""
        assert self._last is not None
        accuracy = self._last.client_accuracy
        return [
            {
                "client": client,
                "mean_time": self._mean_times[client],
                "samples": self._task.samples[client],
                "participation": server.participation[client],
                "last_sent": server.last_sent.get(client, -1),
                "accuracy": float(accuracy[client]) if accuracy is not None else math.nan,
                "loss": float(self._last.client_loss[client]),
            }
            for client in range(self._task.clients)
        ]

    def state_dict(self) -> State:
        last = vars(self._last) if self._last is not None else None
        return {"done": self._done, "metrics": [dict(row) for row in self.metrics], "last": last}

    def load_state_dict(self, state: State) -> None:
        self._done, self.metrics = int(state["done"]), [dict(row) for row in state["metrics"]]
        self._last = Evaluation(**state["last"]) if state["last"] is not None else None


def configuration(
    task: Task, rule: Method, lr: float, scenario: Scenario, stop: Stop, seed: int, dim: int
) -> dict[str, Any]:
    """Everything that made a run, as plain JSON."""
    config: dict[str, Any] = plain(
        {
            "format": FORMAT,
            "method": type(rule).__name__,
            "label": label(rule),
            "rule": settings_of(rule),
            "lr": lr,
            "seed": seed,
            "task": task.describe(),
            "objective": task.objective,
            "scenario": dataclasses.asdict(scenario),
            "stop": dataclasses.asdict(stop),
            "clients": task.clients,
            "dim": dim,
            "compute": {"strategy": _strategy(task), "at_once": task.batch_limit},
            "machine": machine(),
        }
    )
    return config | imported_from(rule)


def _strategy(task: Task) -> str:
    """How the task's gradients are computed; a task that says nothing has a way of its own."""
    return str(getattr(getattr(task, "compute", None), "name", "own"))
