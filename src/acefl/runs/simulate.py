"""One simulated run, from a task and a method to numbers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acefl.core import kernels
from acefl.core.errors import require
from acefl.core.files import check_replaceable
from acefl.core.gate import NormLimit
from acefl.core.optimizers import Optimizer
from acefl.core.progress import Progress, shown
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule
from acefl.core.settings import label
from acefl.core.stop import Stop
from acefl.fleets.scenario import Durations, Scenario
from acefl.fleets.simulated import simulated_fleet
from acefl.runs.checkpoint import Every
from acefl.runs.observers import Observer
from acefl.runs.record import Run
from acefl.runs.saving import checked, run_from_start, run_to_end
from acefl.runs.training import Training
from acefl.tasks.base import Task, client_names, for_run, sharing


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
    progress: Progress | bool | None = True,
    checkpoint: Every | None = None,
    norm_limit: NormLimit | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
) -> Run:
    """Train `task` by `rule` in virtual time, evaluating `evaluations` times at even shares of the budget.

    The same arguments give the same run, bit for bit. With `norm_limit` the server refuses or clips updates that
    are out of line with the other clients'. `optimizer` makes the step of the rule's direction (see
    `acefl.core.optimizers`), `schedule` changes the learning rate over the budget (see `acefl.core.schedules`).
    With `out` the run is also saved there. With `checkpoint` its state is saved there now and then: if the process
    is killed, `acefl.resume(out)` goes on as if it had not been.

    Args:
        task: What to train: see `acefl.tasks`.
        rule: Settings of a method, such as `ACE()`.
        lr: Learning rate of a server step.
        scenario: Speeds, clock and dropouts; None: `Scenario()`.
        stop: The budget; None: 10,000 arrivals, or all visits of a scenario that has them.
        seed: Of everything drawn.
        out: Directory to save the run in.
        evaluations: How many.
        observers: Probes and loggers.
        progress: True: a bar on a terminal or in a notebook; False: none; or a function that is called now and then
            with the share of the budget spent, 1 and the method's name.
        checkpoint: How often to save the state; needs `out`.
        norm_limit: Limit on the length of updates.
        optimizer: Of the server; None: plain descent.
        schedule: Of the learning rate; None: constant.
    """

    _refuse_mixed_up(task, rule, scenario, stop)

    def begin() -> Training:
        return simulation(
            task,
            rule,
            lr=lr,
            scenario=scenario or Scenario(),
            stop=stop or _usual_stop(scenario),
            seed=seed,
            evaluations=evaluations,
            observers=observers,
            norm_limit=norm_limit,
            optimizer=optimizer,
            schedule=schedule,
        )

    if checkpoint is not None:
        where = checked(checkpoint, out)
        with shown(progress, label(rule)) as told:
            return run_from_start(begin, checkpoint, where, told)
    if out is not None:
        check_replaceable(Path(out))
    with shown(progress, label(rule)) as told:
        return run_to_end(begin(), out=out, progress=told)


def simulation(
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
    compiled: bool | None = None,
) -> Training:
    """A run in virtual time that has not begun. `compiled`: whether gradients are to be; None: as the task says."""
    scenario = _with_rounds(rule, scenario, task.clients)
    updates = _expected_updates(task, rule, scenario, stop, seed)
    alike = scenario.clock == "tick" or rule.rounds or rule.arrivals_per_step != 1
    task = for_run(task, updates, compiled, alike)
    fleet = simulated_fleet(task, scenario, seed, differences=rule.uploads is Upload.CHANGE)
    trace = fleet.durations.trace
    with kernels.expecting(updates):
        return Training(
            rule,
            fleet,
            lr=lr,
            stop=stop,
            config={
                "seed": seed,
                "task": task.describe(),
                "objective": task.objective,
                "scenario": scenario.record(),
                **({"trace": trace} if trace is not None else {}),
                "clients": task.clients,
                "compute": _compute(task),
            },
            task=task,
            evaluations=evaluations,
            observers=observers,
            norm_limit=norm_limit,
            optimizer=optimizer,
            schedule=schedule,
        )


def _usual_stop(scenario: Scenario | None) -> Stop:
    visits = None if scenario is None else scenario.visits
    return Stop(arrivals=10_000 if visits is None else len(visits))


def _expected_updates(task: Task, rule: Method, scenario: Scenario, stop: Stop, seed: int) -> float:
    """About how many updates the budget takes."""
    limits = [] if scenario.visits is None else [float(len(scenario.visits))]
    if stop.arrivals is not None:
        limits.append(float(stop.arrivals))
    if stop.steps is not None:
        limits.append(float(stop.steps * (rule.arrivals_per_step or task.clients)))
    if stop.time is not None:
        scenario.check(task.clients)
        means = Durations(scenario, task.clients, seed, client_names(task)).mean
        limits.append(stop.time * scenario.busy(task.clients) / task.clients * sum(1.0 / mean for mean in means))
    return min(limits, default=0.0)


def _refuse_mixed_up(task: Any, rule: Any, scenario: Any, stop: Any) -> None:
    """One clear line for the slips people make: a class for its settings, a number for a budget, a name for a task."""
    require(hasattr(task, "updates"), f"task is {task!r}; allowed: a task such as acefl.tasks.digits()")
    name = rule.__name__ if isinstance(rule, type) else rule
    allowed = "a method's settings such as acefl.ACE(), with its parentheses; your own derive from acefl.Method"
    require(isinstance(rule, Method), f"rule is {name!r}; allowed: {allowed}")
    allowed = "an acefl.Scenario such as Scenario(spread=30.0)"
    require(scenario is None or isinstance(scenario, Scenario), f"scenario is {scenario!r}; allowed: {allowed}")
    allowed = "an acefl.Stop such as Stop(arrivals=1000)"
    require(stop is None or isinstance(stop, Stop), f"stop is {stop!r}; allowed: {allowed}")


def _with_rounds(rule: Method, scenario: Scenario, clients: int) -> Scenario:
    """The scenario for a method with rounds: who is drawn for one is who is at work."""
    if not rule.rounds:
        return scenario
    told = f"{label(rule)} decides who works when, which visits say already; allowed: methods without rounds"
    require(scenario.visits is None, told)
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


def _compute(task: Task) -> dict[str, Any]:
    """How the task computes clients' work, and of how many clients at once; `shared`: of those on one model version."""
    shares = sharing(task)
    shared = {} if shares is None else {"shared": shares.shared_limit}
    return {"strategy": _strategy(task), "at_once": task.batch_limit, **shared}


def _strategy(task: Task) -> str:
    """How the task's gradients are computed; a task that says nothing has a way of its own."""
    return str(getattr(getattr(task, "compute", None), "name", "own"))
