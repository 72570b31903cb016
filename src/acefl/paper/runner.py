"""Makes the runs of one or several recipes, the most wanted first, and goes on where it stopped.

Every finished run is a line in its recipe's `results.jsonl` before the next one starts. What to run next follows from
those lines alone: a run that is there is not made again, a learning rate that is being tuned resumes from its recorded
trials, and a run that two recipes share is made once.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput
from acefl.core.progress import Progress
from acefl.paper.plan import Planned, Tuning
from acefl.paper.rates import search
from acefl.paper.records import Ledger, Record, Results
from acefl.runs.record import machine
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.pools import how_many
from acefl.studies.spec import RunSpec
from acefl.studies.sweep import Cell

_KEPT = 5  # significant digits of a recorded metric


@dataclass(frozen=True)
class Assignment:
    """One run to make, for whoever makes it."""

    recipe: str
    kind: str  # run, or trial of a learning-rate search
    labels: Mapping[str, Any]
    cell: Cell
    probe: int | None

    def spec(self) -> RunSpec:
        return dataclasses.replace(self.cell.spec(Path()), out=None, probe=self.probe, watch=self.probe is not None)


@dataclass
class Outcome:
    """What a call left behind."""

    done: int
    left: int  # known to be wanted, not made
    failed: dict[str, str]  # cell name -> one line why


def run(
    plan: Sequence[Planned],
    folders: Mapping[str, Path],
    *,
    workers: int | None = None,
    limit: float | None = None,
    progress: Progress | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """Make what the plan wants and is not there; after `limit` seconds nothing more is started.

    `folders` says where each recipe's `results.jsonl` is. A run that failed is named in the outcome and tried again by
    the next call; settings that cannot work end the call. `begin` is called before the first run made is recorded.
    """
    ledgers = {name: Ledger(folder / "results.jsonl") for name, folder in folders.items()}
    schedule = _Schedule(plan, ledgers, math.inf if limit is None else time.monotonic() + limit)
    with open_jobs(workers) as jobs:

        def add_ready() -> None:
            for assignment in schedule.ready(how_many(workers) - len(jobs)):
                jobs.add(Job(_make, assignment, assignment, _words(assignment)))

        add_ready()
        if progress is not None:
            progress(0, schedule.known(), "")
        for end in jobs.ended():
            if isinstance(end.error, InvalidInput):
                raise end.error
            if end.error is None and not schedule.done:
                begin()
            schedule.finished(end.job.key, None if end.error else end.result(), end.problem)
            add_ready()
            if progress is not None:
                progress(schedule.done, schedule.known(), end.job.words)
    schedule.settle()
    return Outcome(schedule.done, schedule.known() - schedule.done, schedule.failed)


class _Schedule:
    """Which run comes next."""

    def __init__(self, plan: Sequence[Planned], ledgers: Mapping[str, Ledger], deadline: float) -> None:
        self._plan, self._ledgers, self._deadline = plan, ledgers, deadline
        self._under_way: set[str] = set()
        self._seconds: dict[tuple[Any, ...], float] = {}
        for ledger in ledgers.values():
            for record in ledger.records.values():
                self._note_seconds(record)
        self.failed: dict[str, str] = {}
        self.done = 0
        self._left = 0

    def ready(self, count: int) -> list[Assignment]:
        """The first few runs that are wanted and not under way, and can be over before the deadline."""
        while any([self._copied(assignment) for planned in self._plan for assignment in self._wanted(planned)]):
            pass  # what was copied may have been a trial, and its search wants the next
        chosen: list[Assignment] = []
        self._left = 0
        for planned in self._plan:
            for assignment in self._wanted(planned):
                name = assignment.cell.name
                if name in self._under_way or name in self.failed:
                    continue
                self._left += 1
                if len(chosen) < count and time.monotonic() + self._expected(assignment) < self._deadline:
                    chosen.append(assignment)
                    self._under_way.add(name)
                    self._left -= 1
        return chosen

    def known(self) -> int:
        return self.done + len(self._under_way) + self._left

    def finished(self, assignment: Assignment, record: Record | None, problem: str) -> None:
        self._under_way.discard(assignment.cell.name)
        if record is None:
            self.failed[assignment.cell.name] = problem
            return
        self.done += 1
        self._ledgers[assignment.recipe].add(record)
        self._note_seconds(record)

    def settle(self) -> None:
        """Record again a run of every rate that was chosen again after another: what is recorded last counts."""
        for name, ledger in self._ledgers.items():
            counted = {record["cell"] for record in Results(ledger.records.values()).records}
            for planned in self._plan:
                runs = self._cells(planned)[1] if planned.recipe == name else []
                made = [cell.name for cell in runs if cell.name in ledger.records]
                if made and counted.isdisjoint(made):
                    ledger.add(ledger.records[made[-1]])

    def _wanted(self, planned: Planned) -> Iterator[Assignment]:
        """The runs of an entry that its ledger does not have."""
        trials, runs = self._cells(planned)
        for cell in trials:
            yield Assignment(planned.recipe, "trial", planned.labels, cell, None)
        for cell in runs:
            if cell.name not in self._ledgers[planned.recipe].records:
                yield Assignment(planned.recipe, "run", planned.labels, cell, planned.probe)

    def _cells(self, planned: Planned) -> tuple[list[Cell], list[Cell]]:
        """The trials that an entry's search still wants or, where it has ended, the entry's runs."""
        if planned.tuning is None:
            return [], planned.cells()
        records = self._ledgers[planned.recipe].records
        rates = search(planned.tuning.unit, planned.tuning.first)
        while wanted := rates.ask():
            trials = {rate: planned.trial(rate) for rate in wanted}
            missing = [cell for cell in trials.values() if cell.name not in records]
            if missing:
                return missing, []
            for rate, cell in trials.items():
                rates.tell(rate, _score(records[cell.name], planned.tuning))
        return [], planned.cells(rates.best)

    def _copied(self, assignment: Assignment) -> bool:
        """Whether another recipe has made this very run; its record is then copied, under the labels of this one."""
        for ledger in self._ledgers.values():
            record = ledger.records.get(assignment.cell.name)
            if record is not None and record["kind"] == assignment.kind:
                own = {**record, "recipe": assignment.recipe, "labels": dict(assignment.labels)}
                self._ledgers[assignment.recipe].add(own)
                return True
        return False

    def _note_seconds(self, record: Record) -> None:
        like = _alike(record["settings"])
        self._seconds[like] = max(self._seconds.get(like, 0.0), float(record["wall_seconds"]))

    def _expected(self, assignment: Assignment) -> float:
        """Seconds, from the runs of the same method in the same setting that were made before."""
        return self._seconds.get(_alike(assignment.cell.settings), 0.0)


def _score(trial: Record, tuning: Tuning) -> float:
    end = trial["final"].get(tuning.score)
    return math.inf if trial["diverged"] or end is None else float(end)


def _alike(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("method", "task.name", "task.model", "task.clients", "scenario.clock", "scenario.delay")
    stops = ("stop.steps", "stop.arrivals", "task.local", "task.batch")
    return tuple(settings.get(key) for key in (*keys, *stops))


def _make(assignment: Assignment) -> Record:
    """One run as a record. Called where the run is made; everything in it is plain."""
    began = time.perf_counter()
    made = assignment.spec().run()
    ages = made.events["version"] - made.events["trained_on"]
    return {
        "cell": assignment.cell.name,
        "recipe": assignment.recipe,
        "kind": assignment.kind,
        "labels": dict(assignment.labels),
        "settings": assignment.cell.settings,
        "final": {key: _short(value) for key, value in made.final.items()},
        "history": [{key: _short(value) for key, value in row.items()} for row in made.metrics],
        "steps": made.steps,
        "arrivals": made.arrivals,
        "time": made.time,
        "staleness": float(ages.mean()) if len(ages) else 0.0,
        "parameters": made.config["dim"],
        "samples": sum(row["samples"] for row in made.clients),
        "compute": made.config["compute"]["strategy"] + (", shared" if "shared" in made.config["compute"] else ""),
        "diverged": made.diverged,
        "wall_seconds": round(made.wall_seconds, 2),
        "all_seconds": round(time.perf_counter() - began, 2),  # with building the task
        "machine": machine(),
    }


def _short(value: float) -> float | None:
    return float(f"{value:.{_KEPT}g}") if math.isfinite(value) else None


def _words(assignment: Assignment) -> str:
    said = ", ".join(f"{key} {value}" for key, value in assignment.labels.items())
    if assignment.kind == "trial":
        said += f", trying lr {assignment.cell.settings['lr']:.3g}"
    return f"{assignment.recipe}: {said}"
