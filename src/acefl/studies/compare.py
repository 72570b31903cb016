"""Compare methods fairly: each one's learning rate found by the same search, then the same seeds for all."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acefl import report
from acefl.core.errors import require
from acefl.core.files import atomic_directory, write_json
from acefl.core.optimizers import Optimizer
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule
from acefl.core.settings import label, settings_of, step_record
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.rules import imported_from
from acefl.runs.record import FORMAT, command_line, machine, run_name
from acefl.studies.jobs import Job, Progress, open_jobs
from acefl.studies.objective import Objective
from acefl.studies.search import LearningRateSearch
from acefl.studies.spec import (
    DEFAULT_SCENARIO,
    DEFAULT_SEEDS,
    DEFAULT_STOP,
    DEFAULT_TASK,
    PAPER_METHODS,
    TUNING_SEED,
    RunSpec,
)
from acefl.tasks.base import client_names
from acefl.tasks.sources import TaskSource, build_task, built_once


def compare(
    task: TaskSource = DEFAULT_TASK,
    methods: Sequence[Method] = PAPER_METHODS,
    *,
    out: str | os.PathLike[str],
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    lr: float | None = None,
    lr_centre: float = 0.25,
    by: str | None = None,
    evaluations: int = 50,
    workers: int | None = None,
    title: str = "",
    probe: int | None = None,
    progress: Progress | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
) -> Path:
    """Run every method on every seed, each with its own tuned learning rate (or `lr`), and record it all in `out`.

    Every method's rate is found by the same search, on a seed that is not reported. With `probe` the error terms of a
    step are measured every so many arrivals (see `acefl.probes`). `optimizer` and `schedule` are those of every run, of
    the search too. Returns the directory, which holds `compare.json`, one run directory per method and seed, and
    `report.html`.

    Args:
        task: Arguments of a task by name, or a function that makes the task of a seed.
        methods: Settings of the methods, each once.
        out: Directory to write.
        scenario: Speeds, clock and dropouts.
        stop: Budget of each run; with a target, runs end there (not the trials of rates), and the time to it is shown.
        seeds: Seeds to report.
        lr: One rate for all; None: tune each.
        lr_centre: Where the search for a rate starts.
        by: The metric that rates are chosen by and methods are ordered by, such as `heldout_client_loss`; None: rates
            by the task's objective.
        evaluations: Per run, at even shares of the budget.
        workers: Processes; None: one per core, at most 8.
        title: Of the report.
        probe: Arrivals between measurements of the error terms; None: none.
        progress: Called with jobs done, jobs known and the last one's name.
        optimizer, schedule: Of every run.
    """
    require(bool(methods), "methods is empty; allowed: at least one")
    require(bool(seeds), "seeds is empty; allowed: at least one")
    require(TUNING_SEED not in seeds, f"seed {TUNING_SEED} is kept for tuning; use another")
    require(len(set(seeds)) == len(seeds), f"seeds are {list(seeds)}; allowed: each once")
    require(lr is None or (math.isfinite(lr) and lr > 0), f"lr is {lr}; allowed: a finite number above 0")
    require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
    names = [label(rule) for rule in methods]
    for name in names:
        require(names.count(name) == 1, f"method {name} is given twice")
    for rule in methods:
        own = rule.optimizer is not None or rule.uploads is Upload.MODEL
        require(optimizer is None or not own, f"optimizer is {optimizer}, which {label(rule)} cannot be run with")
    task = built_once(task)
    first = build_task(task, seeds[0])
    scenario.check(first.clients, client_names(first))
    objective = Objective.of(first, by, stop)
    began = time.perf_counter()
    with atomic_directory(Path(out)) as folder:
        plan = RunSpec(
            *(task, methods[0], math.nan, scenario, stop, TUNING_SEED, evaluations),
            watch=True,
            probe=probe,
            optimizer=optimizer,
            schedule=schedule,
            by=objective,
        )
        contenders = [
            _Contender(dataclasses.replace(plan, rule=rule), LearningRateSearch(lr_centre))
            if lr is None
            else _Contender(dataclasses.replace(plan, rule=rule, lr=lr))
            for rule in methods
        ]
        _run(contenders, seeds, folder / "runs", workers, progress)
        made_by = first.describe()
        described = made_by if callable(task) else {**task, "client_work": made_by.get("client_work")}
        content = {
            "format": FORMAT,
            "title": title or f"{len(methods)} methods on {described.get('name', 'a task')}",
            "task": described,
            "objective": objective.metric,
            **({"by": by} if by is not None else {}),
            "scenario": scenario.record(),
            "stop": stop.record(),
            "seeds": list(seeds),
            **step_record(optimizer, schedule),
            "methods": [contender.describe(seeds) for contender in contenders],
            "command": command_line("acefl.compare(...)"),
            "machine": machine(),
            "wall_seconds": time.perf_counter() - began,
        }
        write_json(folder / "compare.json", content)
        report.build(folder)
    return Path(out)


@dataclasses.dataclass(eq=False)
class _Contender:
    """A method: the run to make on every seed, and the search for its learning rate, if that is not given."""

    plan: RunSpec
    search: LearningRateSearch | None = None

    @property
    def name(self) -> str:
        return label(self.plan.rule)

    @property
    def objective(self) -> Objective:
        assert self.plan.by is not None
        return self.plan.by

    def next_jobs(self, seeds: Sequence[int], folder: Path | None) -> list[Job]:
        """Rates to try or, once the best is known, the reported runs; nothing while others are still out."""
        if self.search is not None:
            trial = self.plan.as_trial(evaluations=4)
            rates = self.search.ask()
            if rates or not self.search.done:
                return [
                    Job(
                        RunSpec.score,
                        dataclasses.replace(trial, lr=rate),
                        (self, rate),
                        f"{self.name}: tried lr {rate:.3g}",
                    )
                    for rate in rates
                ]
            self.plan = dataclasses.replace(self.plan, lr=self.search.best)
        if folder is None:
            return []
        runs = {
            seed: dataclasses.replace(self.plan, seed=seed, out=folder / run_name(self.name, seed)) for seed in seeds
        }
        return [Job(RunSpec.save, spec, (self, None), f"{self.name}: seed {seed} done") for seed, spec in runs.items()]

    def describe(self, seeds: Sequence[int]) -> dict[str, Any]:
        rule, tried = self.plan.rule, sorted(self.search.scores.items()) if self.search else []
        return {
            "label": self.name,
            "method": type(rule).__name__,
            "rule": settings_of(rule),
            **imported_from(rule),
            "lr": self.plan.lr,
            "tuning": [{"lr": rate, "score": self.objective.cost(cost)} for rate, cost in tried],
            "runs": [f"runs/{run_name(self.name, seed)}" for seed in seeds],
        }


def _run(
    contenders: Sequence[_Contender],
    seeds: Sequence[int],
    folder: Path | None,
    workers: int | None,
    progress: Progress | None,
) -> None:
    """Keep the workers busy: each method's search first, its reported runs as soon as its rate is known."""
    done = 0
    with open_jobs(workers, here=callable(contenders[0].plan.task)) as jobs:

        def tell(words: str) -> None:
            searching = [one.search for one in contenders if one.search is not None and not one.search.done]
            known = done + len(jobs) + sum(len(seeds) + search.ahead for search in searching)
            if progress is not None:
                progress(done, known, words)

        for contender in contenders:
            jobs.add(*contender.next_jobs(seeds, folder))
        tell("")
        for end in jobs.ended():
            contender, rate = end.job.key
            score, done = end.result(), done + 1
            if rate is not None:
                contender.search.tell(rate, contender.objective.cost(score))
                jobs.add(*contender.next_jobs(seeds, folder))
            tell(end.job.words)


def search_rate(
    task: TaskSource = DEFAULT_TASK,
    rule: Method = PAPER_METHODS[0],
    *,
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    lr_centre: float = 0.25,
    by: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> LearningRateSearch:
    """The learning-rate search of `compare` for one method: its best rate and every rate tried."""
    task = built_once(task)
    built = build_task(task, TUNING_SEED)
    scenario.check(built.clients)
    search = LearningRateSearch(lr_centre)
    plan = RunSpec(task, rule, math.nan, scenario, stop, TUNING_SEED, by=Objective.of(built, by, stop))
    _run([_Contender(plan, search)], (), None, workers, progress)
    return search
