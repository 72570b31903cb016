"""Runs that survive being killed: saved now and then, and gone on with as if nothing had happened.

A state holds everything that decides how a run goes on: model, rule, table, clock, tasks in flight with their models
or finished updates, metrics and events. Random numbers need no saving: they are functions of (seed, client, visit).
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from acefl import optimizers, rules, schedules, tasks
from acefl.admission import NormLimit
from acefl.checkpoint import Every
from acefl.core.rule import Method
from acefl.core.settings import build, plain
from acefl.errors import InvalidInput, require
from acefl.observers import Observer, check_savable, names
from acefl.record import Run, load, machine
from acefl.rundir import RunDirectory, reopen, start
from acefl.simulation import Progress, Simulation
from acefl.state import lending
from acefl.stop import Stop
from acefl.tasks.base import Task
from acefl.timing import Scenario
from acefl.types import State

log = logging.getLogger(__name__)


def run_resumably(
    begin: Callable[[], Simulation], every: Every, out: str | os.PathLike[str], progress: Progress | None
) -> Run:
    """Run a simulation from its beginning, with checkpoints in `out` until its record is there."""
    with start(out) as directory:
        simulation = begin()
        check_savable(simulation.observers)
        settings = _settings(simulation, every)
        directory.begin({"run": settings, "simulation": None})
        return _run(simulation, settings, every, directory, progress)


def resume(
    directory: str | os.PathLike[str],
    *,
    task: Task | None = None,
    rule: Method | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
) -> Run:
    """Resume the interrupted run in a directory: the end is that of a run never interrupted, bit for bit.

    Tasks and methods that acefl knows by name are built again from what was recorded; pass your own as they were, and
    observers too. A run that has finished is loaded.

    Args:
        directory: The `out` of the run.
        task: Your own task, as it was; None: built from the record.
        rule: Your own method, as it was; None: built from the record.
        observers: As they were.
        progress: Called now and then with the share of the budget spent.
    """
    with reopen(directory) as claimed:
        if claimed is None:
            return load(directory)
        saved = claimed.load()
        try:
            settings = saved["run"]
            _compare_machines(settings["machine"])
            simulation = _build(settings, task, rule, observers)
            if saved["simulation"] is not None:
                simulation.load_state_dict(saved["simulation"])
            every = Every(**settings["every"])
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"the checkpoint in {directory} does not fit: {error!r}") from error
        del saved
        return _run(simulation, settings, every, claimed, progress)


def _run(
    simulation: Simulation, settings: State, every: Every, directory: RunDirectory, progress: Progress | None
) -> Run:
    saved = simulation.server.accepted

    def save_when_due(spent: float) -> None:
        nonlocal saved
        if simulation.server.accepted - saved >= every.arrivals and spent < 1.0:
            saved = simulation.server.accepted
            with lending():
                directory.save({"run": settings, "simulation": simulation.state_dict()})

    finished = simulation.complete(progress, save_when_due)
    directory.finish(finished)
    return finished


def _settings(simulation: Simulation, every: Every) -> State:
    """What it takes to build the simulation again."""
    settings: State = plain(
        {
            "config": simulation.config,
            "evaluations": simulation.evaluations,
            "every": dataclasses.asdict(every),
            "observers": names(simulation.observers),
            "machine": _machine(),
        }
    )
    return settings


def _build(settings: State, task: Task | None, rule: Method | None, observers: Sequence[Observer]) -> Simulation:
    config = settings["config"]
    given = names(observers)
    require(given == settings["observers"], f"observers are {given}; the run's were {settings['observers']}")
    if task is None:
        name = config["task"].get("name")
        require(name in tasks.TASKS, f"the run is on a task of your own ({name}); pass it as task=")
        task = tasks.build(config["task"])
    if rule is None:
        own = config.get("imported_from")
        whose = f"the run is by {config['method']}, your own{f' ({own})' if own else ''}"
        known = own is None and config["method"] in rules.METHODS
        require(known, f"{whose}; pass it as rule=, on the command line as --method")
        rule = rules.from_settings(config["method"], config["rule"])
    simulation = Simulation(
        task,
        rule,
        lr=config["lr"],
        scenario=build(Scenario, config["scenario"]),
        stop=build(Stop, config["stop"]),
        seed=config["seed"],
        evaluations=settings["evaluations"],
        observers=observers,
        norm_limit=build(NormLimit, config["norm_limit"]) if "norm_limit" in config else None,
        optimizer=optimizers.from_record(config["optimizer"]) if "optimizer" in config else None,
        schedule=schedules.from_record(config["schedule"]) if "schedule" in config else None,
    )
    built = plain(simulation.config)
    for what in ("task", "method", "rule", "clients", "dim"):
        require(built[what] == config[what], f"{what} is {built[what]}; the run's was {config[what]}")
    simulation.config = config
    return simulation


def _machine() -> dict[str, Any]:
    """What rounding may depend on."""
    here = machine()
    return {**{name: here[name] for name in ("cpu", "gpu", "torch")}, "threads": torch.get_num_threads()}


def _compare_machines(there: dict[str, Any]) -> None:
    here = _machine()
    changed = [f"{name} {there.get(name)!r} -> {value!r}" for name, value in here.items() if there.get(name) != value]
    if changed:
        log.warning("resumed on another machine (%s): the result may differ in the last bits", ", ".join(changed))
