"""Interrupted simulations, resumed as if nothing had happened."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from typing import Any

from acefl import rules, tasks
from acefl.core import optimizers, schedules
from acefl.core.errors import InvalidInput, require
from acefl.core.gate import NormLimit
from acefl.core.progress import Progress, shown
from acefl.core.rule import Method
from acefl.core.settings import build, plain
from acefl.core.stop import Stop
from acefl.core.types import State
from acefl.fleets.scenario import Scenario
from acefl.runs.checkpoint import Every
from acefl.runs.directory import reopen
from acefl.runs.observers import Observer, names
from acefl.runs.record import Run, load
from acefl.runs.saving import this_machine, train
from acefl.runs.simulate import simulation
from acefl.runs.training import Training
from acefl.tasks.base import Task
from acefl.tasks.own import difference
from acefl.tasks.sources import TaskSource, task_for

log = logging.getLogger(__name__)


def resume(
    directory: str | os.PathLike[str],
    *,
    task: Task | TaskSource | None = None,
    rule: Method | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | bool | None = True,
) -> Run:
    """Resume the interrupted simulation in a directory: the end is that of a run never interrupted, bit for bit.

    Tasks and methods that acefl knows by name are built again from what was recorded; name or pass your own as they
    were, and observers too: a record imports nothing. A run that has finished is loaded. Runs on Ray and Flower are
    resumed by the call that started them.

    Args:
        directory: The `out` of the run.
        task: Your own task, as it was: the object, `"mymodule:make_task(batch=8)"`, or the function; None: built from
            the record.
        rule: Your own method, as it was; None: built from the record.
        observers: As they were.
        progress: As for `simulate`.
    """
    with reopen(directory) as claimed:
        if claimed is None:
            return load(directory)
        saved = claimed.load()
        try:
            settings = saved["run"]
            _compare_machines(settings["machine"])
            training = _build(settings, task, rule, observers)
            if saved["training"] is not None:
                training.load_state_dict(saved["training"])
            every = Every(**settings["every"])
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"the checkpoint in {directory} does not fit: {error!r}") from error
        del saved
        with shown(progress, str(training.config["label"])) as told:
            return train(training, settings, every, claimed, told)


def _build(
    settings: State,
    task: Task | TaskSource | None,
    rule: Method | None,
    observers: Sequence[Observer],
) -> Training:
    config = settings["config"]
    fleet = config["scenario"].get("fleet")
    require(fleet is None, f"the run is on {fleet}: it is resumed by the call that started it")
    given = names(observers)
    require(given == settings["observers"], f"observers are {given}; the run's were {settings['observers']}")
    built = _task(config, task)
    other = difference(plain(built.describe()), config["task"])
    require(not other, f"the task is not the run's: {other}")
    if rule is None:
        own = config.get("imported_from")
        whose = f"the run is by {config['method']}, your own{f' ({own})' if own else ''}"
        known = own is None and config["method"] in rules.METHODS
        require(known, f"{whose}; pass it as rule=, on the command line as --method")
        rule = rules.from_settings(config["method"], config["rule"])
    training = simulation(
        built,
        rule,
        lr=config["lr"],
        scenario=build(Scenario, config["scenario"] | ({"trace": config["trace"]} if "trace" in config else {})),
        stop=build(Stop, config["stop"]),
        seed=config["seed"],
        evaluations=settings["evaluations"],
        observers=observers,
        norm_limit=build(NormLimit, config["norm_limit"]) if "norm_limit" in config else None,
        optimizer=optimizers.from_record(config["optimizer"]) if "optimizer" in config else None,
        schedule=schedules.from_record(config["schedule"]) if "schedule" in config else None,
        compiled="compiled" in config["compute"]["strategy"],
    )
    here = plain(training.config)
    for what in ("method", "rule", "clients", "dim", "names"):
        require(here.get(what) == config.get(what), f"{what} is {here.get(what)}; the run's was {config.get(what)}")
    if here["compute"] != config["compute"]:
        log.warning(
            "resumed with gradients computed by %s, before by %s: the result may differ in the last bits",
            here["compute"],
            config["compute"],
        )
    training.config = config
    return training


def _task(config: dict[str, Any], given: Task | TaskSource | None) -> Task:
    """The run's task: as given, for its seed, or by name from the record."""
    if given is not None:
        return task_for(given, int(config["seed"]))
    name, own = config["task"].get("name"), config["task"].get("imported_from")
    known = own is None and name in tasks.TASKS
    whose = f"the run is on a task of your own ({own or name})"
    again = shlex.quote(own or "mymodule:make_task")
    require(known, f"{whose}; pass it as task=, on the command line as --task {again}")
    return tasks.build(config["task"])


def _compare_machines(there: dict[str, Any]) -> None:
    here = this_machine()
    changed = [f"{name} {there.get(name)!r} -> {value!r}" for name, value in here.items() if there.get(name) != value]
    if changed:
        log.warning("resumed on another machine (%s): the result may differ in the last bits", ", ".join(changed))
