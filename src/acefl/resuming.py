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
from acefl.errors import InvalidInput, require
from acefl.record import Run, load, machine, plain
from acefl.rundir import RunDirectory, reopen, start
from acefl.simulation import Observer, Progress, Simulation
from acefl.state import lending
from acefl.stop import Stop
from acefl.tasks.base import Task
from acefl.timing import Scenario
from acefl.types import RuleSettings, State

log = logging.getLogger(__name__)


def run_resumably(
    begin: Callable[[], Simulation], every: Every, out: str | os.PathLike[str], progress: Progress | None
) -> Run:
    """Run a simulation from its beginning, with checkpoints in `out` until its record is there."""
    with start(out) as directory:
        simulation = begin()
        for observer in simulation.observers:
            known = hasattr(observer, "state_dict") and hasattr(observer, "load_state_dict")
            require(
                known, f"{type(observer).__name__} cannot be saved: an observer needs state_dict and load_state_dict"
            )
        settings = _settings(simulation, every)
        directory.begin({"run": settings, "simulation": None})
        return _run(simulation, settings, every, directory, progress)


def resume(
    directory: str | os.PathLike[str],
    *,
    task: Task | None = None,
    rule: RuleSettings | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
) -> Run:
    """Go on with the interrupted run in a directory: the end is that of a run never interrupted, bit for bit.

    Tasks and methods that acefl knows by name are built again from what was recorded; pass your own as they were, and
    observers too. A run that has finished is loaded.
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
            "observers": _names(simulation.observers),
            "machine": _machine(),
        }
    )
    return settings


def _build(settings: State, task: Task | None, rule: RuleSettings | None, observers: Sequence[Observer]) -> Simulation:
    config = settings["config"]
    names = _names(observers)
    require(names == settings["observers"], f"observers are {names}; the run's were {settings['observers']}")
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
        scenario=Scenario(**config["scenario"] | ({"trace": config["trace"]} if "trace" in config else {})),
        stop=Stop(**config["stop"]),
        seed=config["seed"],
        evaluations=settings["evaluations"],
        observers=observers,
        norm_limit=NormLimit(**config["norm_limit"]) if "norm_limit" in config else None,
        optimizer=optimizers.from_record(config["optimizer"]) if "optimizer" in config else None,
        schedule=schedules.from_record(config["schedule"]) if "schedule" in config else None,
    )
    given = plain(simulation.config)
    for what in ("task", "method", "rule", "clients", "dim"):
        require(given[what] == config[what], f"{what} is {given[what]}; the run's was {config[what]}")
    simulation.config = config
    return simulation


def _names(observers: Sequence[Observer]) -> list[str]:
    return [type(observer).__name__ for observer in observers]


def _machine() -> dict[str, Any]:
    """What rounding may depend on."""
    here = machine()
    return {**{name: here[name] for name in ("cpu", "gpu", "torch")}, "threads": torch.get_num_threads()}


def _compare_machines(there: dict[str, Any]) -> None:
    here = _machine()
    changed = [f"{name} {there.get(name)!r} -> {value!r}" for name, value in here.items() if there.get(name) != value]
    if changed:
        log.warning("resumed on another machine (%s): the result may differ in the last bits", ", ".join(changed))
