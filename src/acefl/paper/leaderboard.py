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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl import report
from acefl.core.errors import require
from acefl.core.files import atomic_write, claim, read_json
from acefl.core.rule import Method
from acefl.core.settings import label, plain, settings_of
from acefl.core.stop import Stop
from acefl.fleets.scenario import Durations, Scenario
from acefl.report.metrics import held_out
from acefl.rules import METHODS, imported_from
from acefl.runs.record import FORMAT, command_line, machine, run_name
from acefl.studies.jobs import Job, Progress, open_jobs
from acefl.studies.spec import DEFAULT_TASK, TUNING_SEED, RunSpec
from acefl.studies.tune import check_budget, tune
from acefl.tasks.sources import build_task

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
NATURAL: Mapping[str, Mapping[str, Any]] = {
    f"natural.{name}": {"name": f"natural.{name}", "clients": clients}
    for name, clients in {"chem97": 100, "hsb82": 100, "insteval": 100, "movielens": 100, "stops": 80}.items()
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
ARRIVALS, BUDGET, SEEDS = 6000, 12.0, (0, 1, 2, 3, 4)
_QUICK: Mapping[str, Any] = {"arrivals": 80, "budget": 2.0, "seeds": (0, 1)}
_QUICK_NATURAL: Mapping[str, Any] = {"arrivals": 300, "budget": 3.0, "seeds": (0, 1)}
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

    def fill(self) -> None:
        """Tune, run on every seed, and write it down."""
        began = time.perf_counter()
        scenario = scenario_of(self.rule, _SCENARIOS[self.scenario])
        found = tune(self.settings, self.rule, scenario=scenario, stop=self.stop, budget=self.budget, workers=1)
        specs = [RunSpec(self.settings, found.rule, found.lr, scenario, self.stop, seed, 4) for seed in self.seeds]
        runs = [spec.run() for spec in specs]
        kept = dict.fromkeys((*_KEPT, *_KEPT_NATURAL)) if self.task in NATURAL else _KEPT
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
            "arrivals": [len(run.events) for run in runs],
            "steps": [run.steps for run in runs],
            "time": [shortened(run.time) for run in runs],
            "seconds": shortened(time.perf_counter() - began),
        }
        atomic_write(self.path, json.dumps(plain(row), allow_nan=False))


def leaderboard(
    own: Sequence[Method] = (),
    *,
    out: str | os.PathLike[str],
    only: bool = False,
    natural: bool = False,
    arrivals: int = ARRIVALS,
    budget: float = BUDGET,
    seeds: Sequence[int] = SEEDS,
    quick: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fill every cell of the board that is not there yet, and write `leaderboard.json` and `report.html` in `out`.

    own: methods that join the library's, or with `only` stand alone. natural: on natural federations, with the speeds
    of phones tied to data, independent of it and reversed, in place of the usual tasks and scenarios. arrivals: of
    every run; methods with rounds get the virtual time in which the others have so many. budget: how many whole runs
    the tuning of a cell may cost. quick: everything in a minute (natural: in some minutes), to see what it looks like;
    its numbers mean nothing, and the board says so.
    """
    if quick:
        short = _QUICK_NATURAL if natural else _QUICK
        arrivals, budget, seeds = short["arrivals"], short["budget"], short["seeds"]
    require(arrivals >= 1, f"arrivals is {arrivals}; allowed: at least 1")
    check_budget(budget)
    require(len(seeds) >= 2, f"seeds are {list(seeds)}; allowed: at least two, to know how much they differ")
    require(TUNING_SEED not in seeds, f"seed {TUNING_SEED} is kept for tuning; use another")
    require(not only or bool(own), "only is given without a method; name at least one")
    methods = [*own] if only else [*(kind() for kind in METHODS.values()), *own]
    names = [label(rule) for rule in methods]
    for name in names:
        require(names.count(name) == 1, f"method {name} is on the board twice")
    folder, began = Path(out), time.perf_counter()
    few = {"clients": _QUICK_NATURAL_CLIENTS if natural else _QUICK_CLIENTS} if quick else {}
    tasks = {name: {**settings, **few} for name, settings in (NATURAL if natural else TASKS).items()}
    scenarios, meaning = (COUPLINGS, COUPLED) if natural else (SCENARIOS, MEANING)
    made_with = {
        "format": FORMAT,
        "arrivals": arrivals,
        "budget": budget,
        "seeds": list(seeds),
        "tasks": tasks,
        "scenarios": {name: dataclasses.asdict(scenario) for name, scenario in scenarios.items()},
        "meaning": dict(meaning),
    }
    claim(folder / "board.json", made_with, "leaderboard")
    (folder / "cells").mkdir(exist_ok=True)
    cells = [
        Cell(
            task,
            name,
            rule,
            settings,
            stop_of(rule, scenario, int(settings["clients"]), arrivals),
            budget,
            tuple(seeds),
            folder / "cells" / f"{run_name(f'{task}-{name}-{_title(rule)}', 0).removesuffix('-seed0')}.json",
        )
        for task, settings in tasks.items()
        for name, scenario in scenarios.items()
        for rule in methods
    ]
    for task, settings in tasks.items():
        require(build_task(settings, TUNING_SEED).objective in _KEPT, f"task {task} is judged by what is not kept")
    waiting = [Job(Cell.fill, cell, cell, f"{label(cell.rule)}: {cell.task}, {cell.scenario}") for cell in cells]
    with open_jobs(workers) as jobs:
        jobs.run(waiting, recorded=_is_there, first=_longest_first, progress=progress)
    rows = [read_json(path) for path in sorted((folder / "cells").glob("*.json"))]
    board = {**made_with, "quick": quick, "command": command_line("acefl.paper.leaderboard(...)"), "machine": machine()}
    took = {"took": _took(folder) + time.perf_counter() - began, "core_seconds": sum(row["seconds"] for row in rows)}
    write_board(folder / "leaderboard.json", {**board, **took, "rows": rows})
    report.build(folder)
    return folder


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
