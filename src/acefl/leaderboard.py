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
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from acefl.errors import require
from acefl.experiment import DEFAULT_TASK, TUNING_SEED, Job, Progress, build_task, command_line, make, run_name
from acefl.halving import check_budget, tune
from acefl.record import FORMAT, machine, plain, read_json
from acefl.report.metrics import held_out
from acefl.rules import METHODS, label
from acefl.simulation import imported_from, settings_of
from acefl.stop import Stop
from acefl.timing import Durations, Scenario
from acefl.types import RuleSettings
from acefl.workers import open_pool

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
ARRIVALS, BUDGET, SEEDS = 6000, 12.0, (0, 1, 2, 3, 4)
_QUICK: Mapping[str, Any] = {"arrivals": 80, "budget": 2.0, "seeds": (0, 1)}
_OWN = ("accuracy", "client_loss", "slow_accuracy", "gap", "grad_norm")
_KEPT = (*_OWN, *filter(None, map(held_out, _OWN)))
_SETTINGS = ("arrivals", "budget", "seeds", "tasks", "scenarios")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method on one task in one scenario."""

    task: str
    scenario: str
    rule: RuleSettings
    settings: Mapping[str, Any]  # of the task
    stop: Stop
    budget: float
    seeds: tuple[int, ...]
    path: Path

    def fill(self) -> float:
        """Tune, run on every seed, and write it down; the seconds it took."""
        began = time.perf_counter()
        scenario = scenario_of(self.rule, SCENARIOS[self.scenario])
        found = tune(self.settings, self.rule, scenario=scenario, stop=self.stop, budget=self.budget, workers=1)
        runs = [make(Job(self.settings, found.rule, found.lr, scenario, self.stop, seed, 4)) for seed in self.seeds]
        names = [name for name in _KEPT if name in runs[0].final]
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
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(plain(row), allow_nan=False), encoding="utf-8")
        os.replace(unfinished, self.path)
        return time.perf_counter() - began


def leaderboard(
    own: Sequence[RuleSettings] = (),
    *,
    out: str | os.PathLike[str],
    only: bool = False,
    arrivals: int = ARRIVALS,
    budget: float = BUDGET,
    seeds: Sequence[int] = SEEDS,
    quick: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fill every cell of the board that is not there yet, and write `leaderboard.json` and `report.html` in `out`.

    own: methods that join the library's, or with `only` stand alone. arrivals: of every run; methods with rounds get
    the virtual time in which the others have so many. budget: how many whole runs the tuning of a cell may cost. quick:
    everything in a minute, to see what it looks like; its numbers mean nothing, and the board says so.
    """
    from acefl.report import boards

    if quick:
        arrivals, budget, seeds = _QUICK["arrivals"], _QUICK["budget"], _QUICK["seeds"]
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
    tasks = {name: {**settings, **({"clients": 6} if quick else {})} for name, settings in TASKS.items()}
    claim = {
        "format": FORMAT,
        "quick": quick,
        "arrivals": arrivals,
        "budget": budget,
        "seeds": list(seeds),
        "tasks": tasks,
        "scenarios": {name: dataclasses.asdict(scenario) for name, scenario in SCENARIOS.items()},
    }
    _claim(folder, claim)
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
        for name, scenario in SCENARIOS.items()
        for rule in methods
    ]
    for task, settings in tasks.items():
        require(build_task(settings, TUNING_SEED).objective in _KEPT, f"task {task} is judged by what is not kept")
    _fill([cell for cell in cells if not cell.path.exists()], len(cells), workers, progress)
    rows = [read_json(path) for path in sorted((folder / "cells").glob("*.json"))]
    board = {**claim, "command": command_line("acefl.leaderboard(...)"), "machine": machine()}
    took = {"took": _took(folder) + time.perf_counter() - began, "core_seconds": sum(row["seconds"] for row in rows)}
    write_board(folder / "leaderboard.json", {**board, **took, "rows": rows})
    boards.build(folder)
    return folder


def _title(rule: RuleSettings) -> str:
    """A method's name in a cell's; with its source's, so that a method of one's own that was changed runs anew."""
    if type(rule) in METHODS.values():
        return label(rule)
    try:
        source = Path(inspect.getfile(type(rule))).read_bytes()
    except (TypeError, OSError):  # typed in, not in a file
        return label(rule)
    return f"{label(rule)}-{hashlib.sha256(source).hexdigest()[:8]}"


def scenario_of(rule: RuleSettings, scenario: Scenario) -> Scenario:
    """Clients leave after a share of the arrivals; for a method with rounds, whose budget is time, at that time."""
    if not getattr(rule, "synchronous", False) or not scenario.dropout:
        return scenario
    before, after = scenario.dropout_at, (1.0 - scenario.dropout_at) / (1.0 - scenario.dropout)
    return dataclasses.replace(scenario, dropout_at=before / (before + after))


def stop_of(rule: RuleSettings, scenario: Scenario, clients: int, arrivals: int) -> Stop:
    """So many arrivals; for a method with rounds, about the time in which clients that never wait send as many."""
    if not getattr(rule, "synchronous", False):
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
    path.write_text(f'{head[:-2]},\n "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def _fill(waiting: Sequence[Cell], known: int, workers: int | None, progress: Progress | None) -> None:
    """The cells that take longest first, so that no worker is left with one of them at the end."""
    done = known - len(waiting)
    if progress is not None:
        progress(done, known, "")
    if not waiting:
        return
    ordered = sorted(waiting, key=lambda cell: (SCENARIOS[cell.scenario].clock == "tick", cell.task != "digits"))
    pending: dict[Future[float], Cell] = {}
    with open_pool(workers) as pool:
        try:
            pending = {pool.submit(Cell.fill, cell): cell for cell in ordered}
            while pending:
                for future in pool.finished(pending):
                    cell = pending.pop(future)
                    future.result()
                    done += 1
                    if progress is not None:
                        progress(done, known, f"{label(cell.rule)}: {cell.task}, {cell.scenario}")
        except BaseException:
            pool.abandon()
            raise


def _claim(folder: Path, claim: dict[str, Any]) -> None:
    """Write down what every cell here is made with; a board of other settings, or something else, is refused."""
    note = folder / "board.json"
    if note.exists():
        there = read_json(note)
        for name in _SETTINGS:
            same = there.get(name) == plain(claim[name])
            require(same, f"{folder} holds a board with other {name}; allowed: a new directory, or the same settings")
        return
    require(not folder.exists() or not any(folder.iterdir()), f"{folder} is not empty and holds no leaderboard")
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(plain(claim), indent=1) + "\n", encoding="utf-8")


def _took(folder: Path) -> float:
    """Seconds that earlier calls took to the end."""
    path = folder / "leaderboard.json"
    return float(read_json(path)["took"]) if path.exists() else 0.0


def shortened(number: float) -> float:
    """Six digits: enough to read, and the record stays small."""
    return float(f"{number:.6g}")
