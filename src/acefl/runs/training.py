"""A run in progress: the same for simulated, replayed and real clients."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from acefl.core.errors import NothingInFlight, require
from acefl.core.gate import Gate, NormLimit
from acefl.core.journal import Journal
from acefl.core.loop import dispatch, run
from acefl.core.metrics import Reached, check_measured
from acefl.core.optimizers import Optimizer
from acefl.core.progress import Progress
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule, per_step
from acefl.core.server import Server
from acefl.core.settings import label, plain, settings_of, step_record
from acefl.core.stop import Stop
from acefl.core.turns import Foresight, Turns
from acefl.core.types import Arrival, State, Step, Vector
from acefl.fleets.base import Fleet
from acefl.rules import imported_from
from acefl.runs.evaluation import Evaluate, Evaluator, Row, by_task
from acefl.runs.observers import Observer, add_columns, call_all, methods
from acefl.runs.record import FORMAT, Events, Run, TravelEvents, machine
from acefl.tasks.base import Evaluation, Task, client_names

log = logging.getLogger("acefl")

AfterTurn = Callable[[Step, float], None]  # where the run stands, and the share of the budget spent
Pause = Callable[[], float]  # the number of arrivals at which somebody wants to look at the run


class Training:
    """Everything that changes in a run, in one place, so that it can be watched, saved and resumed.

    `task` is what the clients train on, where it is all here; else `evaluate` judges models, and `config` describes
    the task. `background`: whether training goes on beside evaluations; None: where time is real.
    """

    def __init__(
        self,
        method: Method,
        fleet: Fleet,
        *,
        lr: float,
        stop: Stop,
        config: dict[str, Any],
        task: Task | None = None,
        model: Vector | None = None,
        evaluate: Evaluate | None = None,
        evaluations: int = 50,
        samples: list[int] | None = None,
        observers: Sequence[Observer] = (),
        norm_limit: NormLimit | None = None,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        background: bool | None = None,
    ) -> None:
        _refuse_mixed_up(optimizer, schedule, norm_limit, observers)
        require(
            not (norm_limit and method.uploads is Upload.CHANGE),
            f"norm_limit with {label(method)}, whose clients send changes: one left out or cut would stay missing in "
            "the sum; allowed: methods whose clients send whole updates",
        )
        require(
            fleet.virtual or method.cohort is None,
            f"{label(method)} draws the clients of a round, which only simulations do; allowed here: cohort=None",
        )
        if task is not None:
            model, samples, evaluate = task.initial() if model is None else model, task.samples, by_task(task)
        assert model is not None, "a run needs a model, or a task that has one"
        self.method, self.fleet, self.stop, self.task, self.samples = method, fleet, stop, task, samples
        self.observers = list(observers)
        self.events = TravelEvents() if fleet.travels else Events()
        self.journal = Journal() if fleet.loses else None
        self._arrivals = _Arrivals(fleet, self.events, self.observers)
        clock = str(config.get("scenario", {}).get("clock", "event"))
        self.server = Server(
            model,
            method.build(fleet.at_start, model, samples and samples[: fleet.at_start]),
            lr,
            fleet.at_start,
            gate=Gate(
                fleet.at_start,
                model,
                finite=not (fleet.virtual and model.is_cuda),
                norm=norm_limit,
                known_finite=fleet.known_finite,
            ),
            on_arrival=self._arrivals.note,
            on_dispatch=call_all(methods(self.observers, "dispatched")),
            on_lost=call_all(methods(self.observers, "lost")),
            on_turns=self._arrivals.note_turns if _may_skip(self.observers) else None,
            optimizer=optimizer,
            schedule=schedule.over(fleet.clients, stop, per_step(method, clock)) if schedule else None,
            journal=self.journal,
        )
        self.config = configuration(method, lr, stop, model.numel()) | plain(config)
        if norm_limit is not None:
            self.config["norm_limit"] = dataclasses.asdict(norm_limit)
        self.config |= step_record(optimizer, schedule)
        names = client_names(task)
        if names is not None:
            self.config.setdefault("names", names)
        self.evaluator = Evaluator(
            evaluate,
            evaluations,
            self._arrivals.mean_times,
            objective=task.objective if task is not None else None,
            background=not fleet.virtual if background is None else background,
        )
        self.sample_counts = dict(enumerate(samples or ()))  # as clients have told them
        self.step = Step(0, 0, 0.0, False)
        self._last_step = 0  # arrivals when the model last changed
        self._reached: Reached | None = None  # the target, if there is one
        steps_alone = stop.arrivals is None and stop.time is None
        self._patience = _patience(method, self.mean_times()) if fleet.virtual and steps_alone else math.inf
        self._seconds = 0.0
        for started in methods(self.observers, "started"):
            started(self)

    def mean_times(self) -> list[float]:
        """Every client's mean task time; of real clients, as measured so far."""
        return self._arrivals.mean_times()

    def advance(self, pause: Pause | None = None) -> Iterator[tuple[Step, float]]:
        """Train to the end of the budget, one turn of the loop at a time: where the run stands, and the share spent.

        Between two turns, and only there, the state can be saved. With `pause`, turns that nobody looks at may be taken
        in one go: all, but for evaluations and for the one in which so many arrivals are reached as it says.
        """
        began = time.perf_counter() - self._seconds
        if not self.evaluator.rows:
            self._look(0.0)
            self._check_start()
        if self.evaluator.hopeless or self._reached:
            return
        counts_steps = self._patience != math.inf
        try:
            foresight = Foresight(self.fleet, partial(self._room, pause)) if pause is not None else None
            for step in run(self.server, self.fleet, self.stop, foresight):
                self.step = step
                spent = self.stop.progress(step)
                if step.stepped:  # before anybody saves the state
                    self._last_step = self.server.stepped_at
                self._note_refusals()
                for observer in self.observers:
                    observer.stepped(step, self.server)
                if self.fleet.progressed(spent) and spent < 1.0:  # whoever can now be sent work gets it at once
                    dispatch(self.server, self.fleet)
                looks = self.evaluator.wants(spent)
                if looks:
                    self._look(spent)
                stuck = bool(self.events.reasons) and self._refuses_everything()
                if stuck:  # a checkpoint of this turn knows it too
                    self._look_last()
                self._seconds = time.perf_counter() - began
                yield step, spent
                if stuck or (looks and self.evaluator.hopeless) or self._reached:
                    return
                if counts_steps:
                    self._check_progress()
        except NothingInFlight as reason:
            if not self.server.accepted:
                raise
            log.warning("the run ends early: %s", reason)
            self.config["ended"] = str(reason)

    def _room(self, pause: Pause, arrivals: int, steps: int, time: float) -> bool:
        """Whether nobody looks at the run before this place, nor at it."""
        waited = arrivals - self._last_step > self._patience
        return not waited and arrivals < pause() and not self.evaluator.wants(self.stop.spent(arrivals, steps, time))

    def complete(
        self,
        progress: Progress | None = None,
        after_turn: AfterTurn | None = None,
        before_last: Callable[[], None] | None = None,
        pause: Pause | None = None,
    ) -> Run:
        """Train to the end. `after_turn` hears where the run stands after each turn of the loop, or after several with
        `pause` (see `advance`); `before_last` is called before the last evaluation."""
        shown = 0.0
        for step, spent in self.advance(pause or (None if after_turn else never)):
            if after_turn is not None:
                after_turn(step, spent)
            if progress is not None and (spent - shown >= 0.01 or spent >= 1.0):
                progress(min(spent, 1.0), 1.0, str(self.config["label"]))
                shown = spent
        if before_last is not None:
            before_last()
        return self.finish()

    def _look(self, spent: float) -> None:
        self._tell_observers(self.evaluator.look(self.step, spent, self.server.model))

    def _look_last(self) -> None:
        self._tell_observers(self.evaluator.last(self.step, self.server.model))

    def _tell_observers(self, rows: list[Row]) -> None:
        for row in rows:
            for observer in self.observers:
                observer.evaluated(row)
        self._look_for_target(rows)

    def _look_for_target(self, rows: Sequence[Row]) -> None:
        aim, better = self.stop.aim, self.evaluator.better
        if aim is None or self._reached:
            return
        if self.task is not None and rows and rows[0]["arrival"] == rows[0]["step"] == 0:
            check_measured(aim.metric, rows[0], better)
        self._reached = aim.first(rows, better)

    @property
    def _ended(self) -> dict[str, str]:
        """Why the run ended, where that was not the end of its budget."""
        if self._reached is None or self.stop.aim is None:
            return {}
        reached = f"{self.stop.aim.words(self.evaluator.better)} was reached after {self._reached.arrivals:,} arrivals"
        return {"ended": reached}

    def _check_start(self) -> None:
        """A loss that is not finite before anything was learnt comes from the data, and no method could be judged."""
        if not self.evaluator.hopeless:
            return
        assert self.task is not None
        losses = [self.evaluator.scores(client)["loss"] for client in range(self.fleet.clients)]
        broken = [client for client, loss in enumerate(losses) if not math.isfinite(loss)]
        named = ", ".join(map(self.name_of, broken[:5])) + (" and others" if len(broken) > 5 else "")
        objective = self.task.objective
        require(False, f"{objective} is not finite at the starting model; clients with such data: {named}")

    def _check_progress(self) -> None:
        """NothingInFlight for a run whose budget counts steps alone, when no more of them are to be expected."""
        step = self.step
        if not step.stepped and step.arrivals - self._last_step > self._patience:
            clock = self.config["scenario"]["clock"]
            raise NothingInFlight(
                f"no step in the last {step.arrivals - self._last_step:,} arrivals, and the budget counts steps alone: "
                f"under the {clock} clock with these delays clients never send what "
                f"{label(self.method)} waits for; a budget of arrivals or time ends such a run"
            )

    def _refuses_everything(self) -> bool:
        """Whether so many arrivals in a row were refused that none will be accepted, and the budget never spent."""
        rows = len(self.events.time)
        first = rows - 2 * self.fleet.clients - 100
        if first < 0 or not all(row in self.events.reasons for row in range(first, rows)):
            return False
        reason = self.events.reasons[rows - 1]
        require(reason == "non-finite" or not self.fleet.virtual, f"every update of this task is refused: {reason}")
        return reason == "non-finite"

    def _note_refusals(self) -> None:
        """Put what never became an arrival into the same books."""
        for refusal in self.fleet.refusals():
            self.server.count_refusal(refusal.client, refusal.reason)
            nothing = Arrival(refusal.client, self.server.model, refusal.trained_on, self.server.version, -1)
            self.events.add(self.fleet.now, nothing, refusal.reason, refusal.trip)
            _log_refusal("an answer", refusal.client, refusal.reason)

    def add_evaluation(self, step: Step, found: Evaluation) -> None:
        """Something was found out elsewhere about the model of an earlier step."""
        self._tell_observers([self.evaluator.add(step, found)])

    @property
    def _declared(self) -> dict[str, Any]:
        return {"better": dict(self.evaluator.better)} if self.evaluator.better else {}

    def finish(self) -> Run:
        """Evaluate the final model and put everything together."""
        self._look_last()
        aim = self.stop.aim
        if aim is not None and not any(aim.metric in row for row in self.evaluator.rows):
            log.warning("the target was never measured: no evaluation says %s", aim.metric)
        return self.result()

    def close(self) -> None:
        """Let the clients and the threads go."""
        self.fleet.close()
        self.evaluator.close()

    def name_of(self, client: int) -> str:
        """What a client is called: by its number, where it has no name."""
        names = self.config.get("names", ())
        return names[client] if client < len(names) else str(client)

    def clients(self) -> list[dict[str, Any]]:
        """One row per client as of the last evaluation, with what the observers know of it."""
        times, uploads, participation = self.mean_times(), self.fleet.uploads, self._participation
        named = "names" in self.config
        clients: list[dict[str, Any]] = [
            {
                "client": client,
                **({"name": self.name_of(client)} if named else {}),
                "mean_time": times[client],
                "samples": self.sample_counts.get(client, 0),
                "participation": participation[client],
                "last_sent": self.server.last_sent.get(client, -1),
                **self.evaluator.scores(client),
                "uploads": uploads[client],
            }
            for client in range(len(participation))
        ]
        return add_columns(clients, self.observers)

    @property
    def _participation(self) -> list[int]:
        """Accepted arrivals of every client, also of those that have joined since the server last heard of it."""
        known = self.server.participation
        return known + [0] * (self.fleet.clients - len(known))

    def result(self) -> Run:
        """The run as far as it has come: what is recorded when it is over."""
        return Run(
            config={**self.config, **self._ended, **self._declared, "clients": self.fleet.clients},
            metrics=self.evaluator.rows,
            model=self.server.model,
            steps=self.server.version,
            arrivals=self.server.accepted,
            time=self.fleet.now,
            participation=self._participation,
            clients=self.clients(),
            events=self.events.frame(),
            journal=self.journal.frame() if self.journal is not None else None,
            refused=dict(self.server.refused),
            refused_by_client={client: dict(why) for client, why in self.server.refused_by_client.items()},
            wall_seconds=self._seconds,
            diverged=self.evaluator.diverged or self._refuses_everything(),
        )

    def state_dict(self) -> State:
        """Everything that decides how the run goes on; random numbers are functions of keys and need no saving."""
        return {
            "server": self.server.state_dict(),
            "fleet": self.fleet.state_dict(),
            "evaluator": self.evaluator.state_dict(),
            "events": self.events.state_dict(),
            "journal": self.journal.state_dict() if self.journal is not None else None,
            "arrivals": self._arrivals.state_dict(),
            "samples": [[client, count] for client, count in self.sample_counts.items()],
            "observers": [take() for take in methods(self.observers, "state_dict")],
            "last_step": self._last_step,
            "seconds": self._seconds,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state; the run must have been begun with the same settings."""
        known = len(state["server"]["participation"])
        if known > len(self.server.participation):
            self.server.join(known)
        self.server.load_state_dict(state["server"])
        self.fleet.load_state_dict(state["fleet"])
        self.evaluator.load_state_dict(state["evaluator"])
        self.events.load_state_dict(state["events"])
        self._load_journal(state.get("journal"))
        self._arrivals.load_state_dict(state["arrivals"])
        self.sample_counts = {client: count for client, count in state["samples"]}
        for give, own in zip(methods(self.observers, "load_state_dict"), state["observers"], strict=True):
            give(own)
        self._last_step, self._seconds = int(state["last_step"]), float(state["seconds"])
        self._look_for_target(self.evaluator.rows)
        self.step = Step(self.server.accepted, self.server.version, self.fleet.now, False)
        self.evaluator.resumed(self.stop.progress(self.step))

    def _load_journal(self, state: State | None) -> None:
        if self.journal is not None and state is not None:
            self.journal.load_state_dict(state)
        else:  # a checkpoint of an earlier version: half a journal would be a wrong one
            self.journal = self.server.journal = None


class _Arrivals:
    """Writes arrivals down and tells the observers. It does not know the server, which holds it: a circle would keep
    a table's file open after the run is dropped."""

    def __init__(self, fleet: Fleet, events: Events, observers: list[Observer]) -> None:
        self._fleet, self._events, self._observers = fleet, events, observers
        self._work: dict[int, tuple[float, int]] = {}  # client -> time spent on accepted tasks, their number

    def note(self, arrival: Arrival, reason: str) -> None:
        trip, now = self._fleet.acknowledge(arrival, reason), self._fleet.now
        self._events.add(now, arrival, reason, trip)
        if trip is not None:
            if reason and not self._fleet.virtual:
                _log_refusal("an update", arrival.client, reason)
            if not reason:
                seconds, count = self._work.get(arrival.client, (0.0, 0))
                self._work[arrival.client] = seconds + now - trip.sent, count + 1
        for observer in self._observers:
            observer.arrived(arrival, reason)

    def note_turns(self, turns: Turns, versions: Sequence[int], sent: Sequence[int]) -> None:
        """The same of turns that were taken in one go."""
        self._events.add_turns(turns, versions)
        for observer in self._observers:
            observer.passed(turns.clients, sent)

    def mean_times(self) -> list[float]:
        """Of a client that never answered, all the time there was."""
        known = self._fleet.mean_times()
        if known is not None:
            return known
        done = {client: seconds / count for client, (seconds, count) in self._work.items()}
        return [done.get(client, max(self._fleet.now, 1e-9)) for client in range(self._fleet.clients)]

    def state_dict(self) -> State:
        return {"work": [[client, seconds, count] for client, (seconds, count) in self._work.items()]}

    def load_state_dict(self, state: State) -> None:
        self._work = {client: (seconds, count) for client, seconds, count in state["work"]}


def never() -> float:
    """A `Pause` for who looks at nothing between evaluations."""
    return math.inf


def _may_skip(observers: Sequence[Observer]) -> bool:
    return all(isinstance(observer, Observer) and not observer.each_turn for observer in observers)


def _log_refusal(what: str, client: int, reason: str) -> None:
    facts = {"event": "refused", "client": client, "reason": reason}
    log.warning("refused %s of client %d: %s", what, client, reason, extra={"facts": facts})


def _patience(method: Method, mean_times: Sequence[float]) -> int:
    """Arrivals without a step after which none is to be expected: 400 times what comes in while the slowest client does
    the tasks that one step takes, and 2,000 more."""
    slowest = max(mean_times)
    return 2_000 + int(400 * method.tasks_per_step * sum(slowest / mean if mean else 1.0 for mean in mean_times))


def _refuse_mixed_up(optimizer: Any, schedule: Any, norm_limit: Any, observers: Any) -> None:
    """One clear line for the slips people make: a class or a name for settings, one observer for a list of them."""
    given = {"optimizer": (optimizer, "build", "Momentum()"), "schedule": (schedule, "over", "Cosine()")}
    for name, (value, method, example) in given.items():
        settings = value is None or (hasattr(value, method) and not isinstance(value, type))
        require(settings, f"{name} is {_shown(value)}; allowed: settings such as acefl.{example}, with parentheses")
    limit = norm_limit is None or isinstance(norm_limit, NormLimit)
    require(limit, f"norm_limit is {_shown(norm_limit)}; allowed: an acefl.NormLimit such as NormLimit(factor=10.0)")
    several = isinstance(observers, Sequence) and not any(isinstance(one, type) for one in observers)
    require(several, f"observers is {_shown(observers)}; allowed: a list of observers such as [Participation()]")


def _shown(value: Any) -> str:
    return repr(value.__name__ if isinstance(value, type) else value)


def configuration(method: Method, lr: float, stop: Stop, dim: int) -> dict[str, Any]:
    """What made a run, as plain JSON, apart from the task and the fleet."""
    config: dict[str, Any] = plain(
        {
            "format": FORMAT,
            "method": type(method).__name__,
            "label": label(method),
            "rule": settings_of(method),
            "lr": lr,
            "seed": 0,
            "stop": stop.record(),
            "dim": dim,
            "machine": machine(),
        }
    )
    return config | imported_from(method)
