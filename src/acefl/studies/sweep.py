"""A grid of runs that survives being killed: results land as they finish, and a second call goes on where it was.

A grid is a TOML file:

    method = ["ACE", "ACED(tau=300)"]     # any key may be one value or a list: lists multiply
    lr = [0.05, 0.2]
    schedule = "WarmUp(share=0.1)"        # and optimizer = "Adam", if wanted
    seed = [0, 1, 2]
    [task]
    name = "digits"                       # or your own: "mymodule:make_task", with its arguments below
    alpha = [0.1, 1.0]
    [scenario]
    spread = [1.0, 30.0]
    [stop]
    arrivals = 5000
    target = "accuracy=0.9"               # if wanted: a run ends at the first evaluation that reaches it
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl.core import optimizers, schedules
from acefl.core.errors import InvalidInput, require
from acefl.core.files import claim, read_json, write_json
from acefl.core.progress import Progress, shown
from acefl.core.settings import build
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.rules import parse
from acefl.runs.record import FORMAT, machine, settings_name
from acefl.studies import cost
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.objective import Objective
from acefl.studies.pools import get_ready
from acefl.studies.results import Sweep
from acefl.studies.spec import DEFAULT_SCENARIO, DEFAULT_STOP, DEFAULT_TASK, RunSpec
from acefl.tasks.sources import build_task, check_task, parse_task

KEYS = ("method", "lr", "optimizer", "schedule", "seed", "evaluations", "task", "scenario", "stop")
Settings = dict[str, Any]  # "method" -> "ACE", "task.alpha" -> 0.1, ...


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of the grid: its settings, and a name that is theirs alone."""

    settings: Settings

    @property
    def name(self) -> str:
        return settings_name(self.settings)

    def spec(self, folder: Path) -> RunSpec:
        settings = self.settings
        return RunSpec(
            task=_part(settings, "task", {} if "task.name" in settings else _named_task(settings)),
            rule=parse(str(settings.get("method", "ACE"))),
            lr=_number("lr", settings["lr"]),
            scenario=build(Scenario, _part(settings, "scenario", dataclasses.asdict(DEFAULT_SCENARIO)), "scenario"),
            stop=build(Stop, _limited(_part(settings, "stop", {})), "stop"),
            seed=_whole("seed", settings.get("seed", 0)),
            evaluations=_whole("evaluations", settings.get("evaluations", 50)),
            out=folder / "cells" / self.name,
            optimizer=optimizers.parse(str(settings["optimizer"])) if "optimizer" in settings else None,
            schedule=schedules.parse(str(settings["schedule"])) if "schedule" in settings else None,
        )


@dataclasses.dataclass(frozen=True)
class Grid:
    """Every combination of the settings that were given as lists."""

    axes: dict[str, list[Any]]  # what varies
    fixed: Settings

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Grid:
        """The grid a TOML file describes."""
        return cls.of(read_settings(path))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Grid:
        axes: dict[str, list[Any]] = {}
        fixed: Settings = {}
        for key, value in _flat(content):
            head = key.partition(".")[0]
            require(head in KEYS, f"grid has {key!r}; allowed: {', '.join(KEYS)}")
            for one in value if isinstance(value, list) else [value]:
                plain_value = one is None or isinstance(one, bool | int | float | str | list)
                require(plain_value, f"grid: {key} is {one!r}; allowed: numbers, words, true and false")
            if isinstance(value, list):
                require(bool(value), f"grid: {key} is an empty list; allowed: at least one value")
                for one in value:
                    require(value.count(one) == 1, f"grid: {key} has {one!r} more than once; allowed: each value once")
                axes[key] = value
            else:
                fixed[key] = value
        require("lr" in axes or "lr" in fixed, "grid has no lr; give one value or a list")
        return cls(axes, fixed)

    def cells(self) -> list[Cell]:
        """All combinations, the last axis running fastest."""
        names = list(self.axes)
        return [
            Cell({**self.fixed, **dict(zip(names, values, strict=True))})
            for values in itertools.product(*self.axes.values())
        ]


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """A TOML file's settings, tables as dotted keys."""
    try:
        return dict(_flat(tomllib.loads(Path(path).read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot read grid {path}: {getattr(error, 'strerror', None) or error}") from None


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """`task.alpha=0.1,1` as a key and its values: numbers where they are numbers, commas in brackets left alone."""
    key, sign, values = text.partition("=")
    require(bool(sign and key and values), f"--vary {text!r}; allowed: KEY=V,V such as lr=0.05,0.2")
    return key.strip(), [_value(part.strip()) for part in _split(values)]


def _split(values: str) -> list[str]:
    """At the commas that are in no bracket."""
    parts, depth = [""], 0
    for sign in values:
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def parse_axes(texts: Sequence[str]) -> Settings:
    """Several of these, each with a key of its own."""
    axes: Settings = {}
    for text in texts:
        key, values = parse_axis(text)
        require(key not in axes, f"--vary {key} is given twice; allowed: once, as in {key}=V,V")
        axes[key] = values
    return axes


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def sweep(
    grid: Grid,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    ray: str | None = None,
    by: str | None = None,
    progress: Progress | bool | None = True,
) -> Sweep:
    """Make every run of the grid that is not there yet.

    Cells land in `out/cells`, each whole or not at all, so a killed sweep goes on where it was when called again. A
    cell that fails is written down and does not stop the others; the next call tries it again. `ray` is the address of
    a Ray cluster ("local" starts one here) that shares this file system; without it cells run in worker processes.
    `by` is the metric that the report is about.
    """
    folder = Path(out)
    cells = grid.cells()
    for cell in cells:
        _check(cell, folder)
    _check_metrics(cells, folder, by)
    claim(folder / "sweep.json", {"format": FORMAT, "axes": grid.axes, "fixed": grid.fixed}, "sweep", machine=machine())
    if by is not None:
        write_json(folder / "sweep.json", {**read_json(folder / "sweep.json"), "by": by})
    (folder / "cells").mkdir(exist_ok=True)

    def note(cell: Cell) -> Path:
        return folder / "cells" / f"{cell.name}.failed.json"

    def failed(job: Job, problem: str) -> None:
        write_json(note(job.key), {"settings": job.key.settings, "problem": problem})

    if ray is None:
        get_ready(workers)
    if progress is True:
        print_cost(grid, folder, workers)
    with shown(progress, "starting workers") as told, open_jobs(workers, ray=ray) as jobs:
        jobs.run(
            [Job(RunSpec.save, cell.spec(folder), cell, _words(cell, grid)) for cell in cells],
            recorded=lambda job: (job.argument.out / "summary.json").exists() or None,
            ended=lambda job, _: note(job.key).unlink(missing_ok=True),
            failed=failed,
            progress=told,
        )
    return Sweep(folder)


def print_cost(grid: Grid, folder: Path, workers: int | None) -> None:
    """Say what the cells that are not there yet will cost."""
    specs = [cell.spec(folder) for cell in grid.cells()]
    waiting = [spec for spec in specs if spec.out is not None and not (spec.out / "summary.json").exists()]
    if waiting:
        cost.say(cost.of_sweep(waiting, workers))


def _check(cell: Cell, folder: Path) -> None:
    """Refuse a grid whose settings are wrong before any work is done."""
    spec = cell.spec(folder)
    require(spec.lr > 0, f"lr is {spec.lr}; allowed: above 0")
    require(spec.evaluations >= 1, f"evaluations is {spec.evaluations}; allowed: at least 1")
    assert isinstance(spec.task, Mapping)
    check_task(spec.task)
    clients = spec.task.get("clients")
    if clients is not None:
        spec.scenario.check(_whole("task.clients", clients))


def _check_metrics(cells: Sequence[Cell], folder: Path, by: str | None) -> None:
    """Refuse a metric to go by, and a target, that a task does not measure: each kind of task is built once for it."""
    checked: set[str] = set()
    for cell in cells:
        spec = cell.spec(folder)
        kind = json.dumps([_part(cell.settings, "task", {}), spec.stop.target], sort_keys=True, default=str)
        if (by is not None or spec.stop.target is not None) and kind not in checked:
            checked.add(kind)
            Objective.of(build_task(spec.task, spec.seed), by, spec.stop)


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _part(settings: Settings, head: str, base: dict[str, Any]) -> dict[str, Any]:
    own = {key.removeprefix(f"{head}."): value for key, value in settings.items() if key.startswith(f"{head}.")}
    return {**base, **own}


def _named_task(settings: Settings) -> dict[str, Any]:
    """`task = "mymodule:make_task(batch=8)"` or `task = "digits"`; without either, the default comparison's."""
    return parse_task(str(settings["task"])) if "task" in settings else dict(DEFAULT_TASK)


def _limited(stop: dict[str, Any]) -> dict[str, Any]:
    """A budget with limits: the default ones, where none is given."""
    return stop if set(stop) - {"target"} else {**DEFAULT_STOP.record(), **stop}


def _number(name: str, value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    require(good, f"{name} is {value!r}; allowed: a number")
    return float(value)


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    require(number.is_integer(), f"{name} is {value!r}; allowed: a whole number")
    return int(value)


def _words(cell: Cell, grid: Grid) -> str:
    return ", ".join(f"{axis.rpartition('.')[2]} {cell.settings[axis]}" for axis in grid.axes) or "the only cell"


def results(directory: str | os.PathLike[str]) -> Any:
    """One row per finished cell as a DataFrame: what varied, the final metrics, steps, arrivals, time."""
    return Sweep(directory).summary
