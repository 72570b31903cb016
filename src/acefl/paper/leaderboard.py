"""All methods on a fixed set of scenarios, each tuned with the same budget: a board that anybody's own method can join.

A cell is one method on one task in one scenario: its settings are found by successive halving on the tuning seed, then
it runs on every reported seed. Cells land one by one in `OUT/cells`, whole or not at all, so a board that was killed
goes on where it was, and a method added later costs its own cells only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl import report
from acefl.core.errors import one_of, require
from acefl.core.files import atomic_write, claim, read_json, write_json
from acefl.core.progress import Progress, shown
from acefl.core.rule import Method
from acefl.core.settings import label, plain, settings_of
from acefl.core.stop import Stop
from acefl.fleets.scenario import Durations, Scenario
from acefl.report.metrics import held_out
from acefl.rules import METHODS, RobustACE, imported_from
from acefl.runs.record import FORMAT, Run, command_line, machine, run_name
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.results import Leaderboard
from acefl.studies.spec import DEFAULT_TASK, TUNING_SEED, RunSpec, check_seeds
from acefl.studies.tune import ALL, check_budget, tune
from acefl.tasks import natural as natural_tasks
from acefl.tasks.base import Task
from acefl.tasks.sources import build_task, describe, parse_task
from acefl.tasks.torch_task import TorchTask

TASKS: Mapping[str, Mapping[str, Any]] = {
    "digits": DEFAULT_TASK,
    "quadratic": {"name": "quadratic", "clients": 100, "dim": 50},
}
SCENARIOS: Mapping[str, Scenario] = {
    "equal": Scenario(),
    "spread": Scenario(spread=30.0, slow="last"),
    "dropout": Scenario(dropout=0.5),
    "heavy tail": Scenario(law="pareto"),
    "tick 5": Scenario(clock="tick", delay=5.0),
    "tick 30": Scenario(clock="tick", delay=30.0),
}
MEANING: Mapping[str, str] = {
    "equal": "all clients equally fast",
    "spread": "the slowest takes 30 times as long as the fastest, and speed goes with data",
    "dropout": "half of the clients leave for good half-way",
    "heavy tail": "equal mean speeds, task times Pareto with tail index 1.5",
    "tick 5": "a step per unit of time, tasks take 5 on average",
    "tick 30": "a step per unit of time, tasks take 30 on average",
}
_FEWER = {"natural.stops": 80}  # clients, of tasks that have not many more


def _natural(kind: Callable[..., Any]) -> dict[str, Any]:
    """Settings of a natural task: its 100 largest clients, where it takes a number of them."""
    name = f"natural.{kind.__name__}"
    largest = {"clients": _FEWER.get(name, 100)} if "clients" in inspect.signature(kind).parameters else {}
    return {"name": name, **largest}


_FROM_FOLDER = {kind.__name__: kind for kind in natural_tasks.TASKS if "folder" in inspect.signature(kind).parameters}
NATURAL: Mapping[str, Mapping[str, Any]] = {
    f"natural.{kind.__name__}": _natural(kind) for kind in natural_tasks.TASKS if kind.__name__ not in _FROM_FOLDER
}
COUPLINGS: Mapping[str, Scenario] = {
    "tied": Scenario(devices="phones", slow="last"),
    "independent": Scenario(devices="phones", slow="random"),
    "reversed": Scenario(devices="phones", slow="first"),
}
COUPLED: Mapping[str, str] = {
    "tied": "speeds of phones, 41-fold; clients with larger targets are slower",
    "independent": "the same speeds, given to clients at random",
    "reversed": "the same speeds; clients with larger targets are faster",
}
_SCENARIOS = {**SCENARIOS, **COUPLINGS}
SEEDS = (0, 1, 2, 3, 4)
_WHOLE: Mapping[str, Any] = {"arrivals": 6000, "budget": 12.0, "seeds": SEEDS}
_WHOLE_NATURAL: Mapping[str, Any] = {"arrivals": 3000, "budget": 8.0, "seeds": SEEDS}
_QUICK: Mapping[str, Any] = {"arrivals": 80, "budget": 2.0, "seeds": (0, 1)}
_QUICK_NATURAL: Mapping[str, Any] = {"arrivals": 300, "budget": 3.0, "seeds": (0, 1)}
_EVALUATIONS, _EVALUATIONS_NATURAL = 4, 20  # of a reported run; the time to a target is known as finely
SORTED = 20_000  # parameters of the largest natural model on which RobustACE, unless named with `only`, takes part
TARGET, TARGET_SHARE = "heldout_client_loss", 0.9  # of the way from the starting model to the centralised one
_QUICK_CLIENTS, _QUICK_NATURAL_CLIENTS = 6, 20
_OWN = ("accuracy", "client_loss", "slow_accuracy", "gap", "grad_norm")
_KEPT = (*_OWN, *filter(None, map(held_out, _OWN)))
_WHOSE, _SCORES = ("client", "slow", "worst"), ("loss", "accuracy")
_KEPT_NATURAL = tuple(f"heldout_{whose}_{score}" for whose in _WHOSE for score in _SCORES)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method on one task in one scenario."""

    task: str
    scenario: str
    rule: Method
    settings: Mapping[str, Any]  # of the task
    stop: Stop
    budget: float
    seeds: tuple[int, ...]
    path: Path
    over: str | None = None  # what is tuned beside the rate, as `tune` takes it
    evaluations: int = _EVALUATIONS
    target: float | None = None  # of `TARGET`

    def fill(self) -> None:
        """Tune, run on every seed, and write it down."""
        began = time.perf_counter()
        scenario = scenario_of(self.rule, _SCENARIOS[self.scenario])
        found = tune(
            self.settings,
            self.rule,
            scenario=scenario,
            stop=self.stop,
            over=self.over,
            budget=self.budget,
            workers=1,
            progress=False,
        )
        plan = RunSpec(self.settings, found.rule, found.lr, scenario, self.stop, 0, self.evaluations)
        runs = [dataclasses.replace(plan, seed=seed).run() for seed in self.seeds]
        kept = dict.fromkeys((*_KEPT, *(_KEPT_NATURAL if self.over == ALL else ()), found.objective))
        names = [name for name in kept if name in runs[0].final]
        row = {
            "task": self.task,
            "scenario": self.scenario,
            "method": label(self.rule),
            "tuned": label(found.rule),
            "rule": settings_of(found.rule),
            **imported_from(self.rule),
            "lr": found.lr,
            "objective": found.objective,
            "tuning": {"trials": len(found.trials), "runs": found.spent, "arrivals": found.arrivals},
            "starts": {name: [shortened(r.metrics[0][name]) for r in runs] for name in names},
            "finals": {name: [shortened(math.nan if r.diverged else r.final[name]) for r in runs] for name in names},
            **({} if self.target is None else {"reached": _reached(runs, self.target)}),
            "arrivals": [len(run.events) for run in runs],
            "steps": [run.steps for run in runs],
            "time": [shortened(run.time) for run in runs],
            "seconds": shortened(time.perf_counter() - began),
        }
        atomic_write(self.path, json.dumps(plain(row), allow_nan=False))


def _reached(runs: Sequence[Run], target: float) -> dict[str, list[float | None]]:
    """When every seed's run reached the target: at an evaluation, nothing in between is guessed; None: it did not."""
    places = [run.time_to(TARGET, target) for run in runs]
    return {
        "time": [None if place is None else shortened(place.time) for place in places],
        "arrivals": [None if place is None else place.arrivals for place in places],
    }


def leaderboard(
    own: Sequence[Method] = (),
    *,
    out: str | os.PathLike[str],
    only: bool = False,
    tasks: Sequence[str] = (),
    natural: bool = False,
    data: Mapping[str, str | os.PathLike[str]] | None = None,
    arrivals: int | None = None,
    budget: float | None = None,
    seeds: Sequence[int] = SEEDS,
    quick: bool = False,
    workers: int | None = None,
    progress: Progress | bool | None = True,
) -> Leaderboard:
    """Fill every cell of the board that is not there yet, and write `leaderboard.json` and `report.html` in `out`.

    own: methods that join the library's, or with `only` stand alone. tasks: by name, in place of the board's two, your
    own as `"mymodule:make_task(batch=8)"`. natural: on natural federations, with the speeds of phones tied to data,
    independent of it and reversed, in place of the usual tasks and scenarios; every setting that matters to a method is
    tuned, and cells say when a target was reached. data: folders of natural tasks that need one, by name; these join.
    arrivals: of every run, 6,000 or natural 3,000 by default; methods with rounds get the virtual time in which the
    others have so many. budget: how many whole runs the tuning of a cell may cost, 12 or natural 8 by default. quick:
    everything in a minute (natural: in some minutes), to see what it looks like; its numbers mean nothing, and the
    board says so.

    A task that joins a board later costs its own cells only, like a method.
    """
    form = _WHOLE_NATURAL if natural else _WHOLE
    if quick:
        form = _QUICK_NATURAL if natural else _QUICK
        arrivals, budget, seeds = None, None, form["seeds"]
    arrivals = form["arrivals"] if arrivals is None else arrivals
    budget = form["budget"] if budget is None else budget
    require(arrivals >= 1, f"arrivals is {arrivals}; allowed: at least 1")
    check_budget(budget)
    require(len(seeds) >= 2, f"seeds are {list(seeds)}; allowed: at least two, to know how much they differ")
    check_seeds(seeds)
    require(not only or bool(own), "only is given without a method; name at least one")
    methods = [*own] if only else [*(kind() for kind in METHODS.values()), *own]
    names = [label(rule) for rule in methods]
    for name in names:
        require(names.count(name) == 1, f"method {name} is on the board twice")
    folder, began = Path(out), time.perf_counter()
    few = {"clients": _QUICK_NATURAL_CLIENTS if natural else _QUICK_CLIENTS} if quick else {}
    chosen: dict[str, dict[str, Any]] = {text: parse_task(text) for text in tasks}
    require(natural or not data, "data is given; allowed: with natural")
    usual = {**NATURAL, **_from_folders(data or {})} if natural else TASKS
    chosen = chosen or {
        name: {key: few.get(key, value) for key, value in settings.items()} for name, settings in usual.items()
    }
    scenarios, meaning = (COUPLINGS, COUPLED) if natural else (SCENARIOS, MEANING)
    built = {task: build_task(settings, TUNING_SEED) for task, settings in chosen.items()}
    made_with: dict[str, Any] = {
        "format": FORMAT,
        "arrivals": arrivals,
        "budget": budget,
        "seeds": list(seeds),
        "scenarios": {name: dataclasses.asdict(scenario) for name, scenario in scenarios.items()},
        "meaning": dict(meaning),
        **({"tuned": ALL, "target": {"metric": TARGET, "share": TARGET_SHARE}} if natural else {}),
    }
    note = folder / "board.json"
    claim(note, made_with, "leaderboard")
    described = {task: _without_folder(describe(settings, built[task])) for task, settings in chosen.items()}
    made_with["tasks"] = _with_new(note, "tasks", described)
    if natural:
        there = read_json(note).get("references", {})
        references = {task: there.get(task) or _reference(built[task]) for task in chosen}
        made_with["references"] = _with_new(note, "references", references)
    (folder / "cells").mkdir(exist_ok=True)
    cells = [
        Cell(
            task,
            name,
            rule,
            settings,
            stop_of(rule, scenario, built[task].clients, arrivals),
            budget,
            tuple(seeds),
            folder / "cells" / cell_name(task, name, _title(rule)),
            **(_of_natural_cells(made_with["references"][task]) if natural else {}),
        )
        for task, settings in chosen.items()
        for name, scenario in scenarios.items()
        for rule in methods
        if only or not natural or _is_affordable(rule, built[task])
    ]
    waiting = [Job(Cell.fill, cell, cell, f"{label(cell.rule)}: {cell.task}, {cell.scenario}") for cell in cells]
    with shown(progress, "starting workers") as told, open_jobs(workers) as jobs:
        jobs.run(waiting, recorded=_is_there, first=_longest_first, progress=told)
    rows = [read_json(path) for path in sorted((folder / "cells").glob("*.json"))]
    board = {**made_with, "quick": quick, "command": command_line("acefl.paper.leaderboard(...)"), "machine": machine()}
    took = {"took": _took(folder) + time.perf_counter() - began, "core_seconds": sum(row["seconds"] for row in rows)}
    write_board(folder / "leaderboard.json", {**board, **took, "rows": rows})
    report.build(folder)
    return Leaderboard(folder)


def _from_folders(data: Mapping[str, str | os.PathLike[str]]) -> dict[str, dict[str, Any]]:
    """Settings of the natural tasks whose folders are given."""
    for name in data:
        one_of("data", name, tuple(_FROM_FOLDER))
    return {
        f"natural.{name}": {**_natural(_FROM_FOLDER[name]), "folder": str(Path(folder).expanduser().absolute())}
        for name, folder in data.items()
    }


def _without_folder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task as a board holds it: where somebody keeps the files is nobody else's business."""
    return {key: value for key, value in settings.items() if key != "folder"}


def _with_new(note: Path, key: str, new: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the board's note under a key, new ones added to it; one that is there as another is refused."""
    content = read_json(note)
    there = content.get(key, {})
    for name, value in plain(new).items():
        same = there.get(name, value) == value
        require(
            same, f"{note.parent} holds a leaderboard with other {key}; allowed: a new directory, or the same settings"
        )
    joined = {**there, **plain(new)}
    if joined != there:
        write_json(note, {**content, key: joined})
    return joined


def _reference(task: Task) -> dict[str, float | None]:
    """What a natural task's target is made of: its metric at the start, and with everybody's data in one place.

    Known before any method runs, so that it favours none. A task of one's own without held-out data has none.
    """
    start = task.evaluate(task.initial()).metrics.get(TARGET)
    if start is None or not isinstance(task, TorchTask):
        return {"start": start, "centralised": None, "target": None}
    end = task.evaluate(natural_tasks.centralised(task)).metrics[TARGET]
    found = {"start": start, "centralised": end, "target": start + TARGET_SHARE * (end - start)}
    return {name: shortened(value) for name, value in found.items()}


def _is_affordable(rule: Method, task: Task) -> bool:
    """RobustACE sorts every client's row at every arrival: on a large model one cell would take hours."""
    return not isinstance(rule, RobustACE) or len(task.initial()) <= SORTED


def _of_natural_cells(reference: Mapping[str, float | None]) -> dict[str, Any]:
    """Settings that only cells of natural boards have."""
    return {"over": ALL, "evaluations": _EVALUATIONS_NATURAL, "target": reference["target"]}


def cell_name(task: str, scenario: str, title: str) -> str:
    return f"{run_name(f'{task}-{scenario}-{title}', 0).removesuffix('-seed0')}.json"


def _title(rule: Method) -> str:
    """A method's name in a cell's; with its source's, so that a method of one's own that was changed runs anew."""
    if type(rule) in METHODS.values():
        return label(rule)
    try:
        source = Path(inspect.getfile(type(rule))).read_bytes()
    except (TypeError, OSError):  # typed in, not in a file
        return label(rule)
    return f"{label(rule)}-{hashlib.sha256(source).hexdigest()[:8]}"


def scenario_of(rule: Method, scenario: Scenario) -> Scenario:
    """Clients leave after a share of the arrivals; for a method with rounds, whose budget is time, at that time."""
    if not rule.rounds or not scenario.dropout:
        return scenario
    before, after = scenario.dropout_at, (1.0 - scenario.dropout_at) / (1.0 - scenario.dropout)
    return dataclasses.replace(scenario, dropout_at=before / (before + after))


def stop_of(rule: Method, scenario: Scenario, clients: int, arrivals: int) -> Stop:
    """So many arrivals; for a method with rounds, about the time in which clients that never wait send as many."""
    if not rule.rounds:
        return Stop(arrivals=arrivals)
    durations = Durations(scenario, clients, seed=0)
    times = [
        durations.mean_rounded(c, math.ceil) if scenario.clock == "tick" else durations.mean[c] for c in range(clients)
    ]
    rate = sum(1.0 / time for time in times)
    after = 1.0 - scenario.dropout_at if scenario.dropout else 0.0
    return Stop(time=arrivals / rate * (1.0 - after + after / (1.0 - scenario.dropout)))


def write_board(path: Path, board: dict[str, Any]) -> None:
    """A row of the board per line: small, and a change of one cell is a change of one line."""
    head = json.dumps(plain({key: value for key, value in board.items() if key != "rows"}), indent=1, allow_nan=False)
    lines = ",\n".join(json.dumps(plain(row), allow_nan=False) for row in board["rows"])
    atomic_write(path, f'{head[:-2]},\n "rows": [\n{lines}\n]}}\n')


def _is_there(job: Job) -> bool | None:
    return job.key.path.exists() or None


def _longest_first(job: Job) -> tuple[bool, bool]:
    """So that no worker is left with a long one at the end."""
    return _SCENARIOS[job.key.scenario].clock == "tick", job.key.task != "digits"


def _took(folder: Path) -> float:
    """Seconds that earlier calls took to the end."""
    path = folder / "leaderboard.json"
    return float(read_json(path)["took"]) if path.exists() else 0.0


def shortened(number: float) -> float:
    """Six digits: enough to read, and the record stays small."""
    return float(f"{number:.6g}")
