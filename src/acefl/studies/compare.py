"""Compare methods fairly: each one's learning rate found by the same search, then the same seeds for all."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl import report
from acefl.core.errors import require
from acefl.core.files import write_json
from acefl.core.optimizers import Optimizer
from acefl.core.progress import Progress, shown
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule
from acefl.core.settings import label, settings_of, step_record
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.rules import imported_from
from acefl.runs.loggers import check_logger
from acefl.runs.observers import Observer
from acefl.runs.record import FORMAT, command_line, machine, run_name
from acefl.studies import cost
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.ledger import Ledger
from acefl.studies.objective import Objective
from acefl.studies.results import Comparison
from acefl.studies.search import LearningRateSearch
from acefl.studies.spec import (
    DEFAULT_SCENARIO,
    DEFAULT_SEEDS,
    DEFAULT_STOP,
    DEFAULT_TASK,
    PAPER_METHODS,
    TUNING_SEED,
    RunSpec,
    check_seeds,
)
from acefl.studies.unfinished import resumable_directory
from acefl.tasks.base import client_names
from acefl.tasks.sources import TaskSource, build_task, built_once, describe

_LEDGER = "jobs.jsonl"


def compare(
    task: TaskSource = DEFAULT_TASK,
    methods: Sequence[Method] = PAPER_METHODS,
    *,
    out: str | os.PathLike[str] = "acefl-compare",
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    lr: float | Mapping[str, float] | None = None,
    lr_centre: float = 0.25,
    by: str | None = None,
    evaluations: int = 50,
    workers: int | None = None,
    title: str = "",
    probe: int | None = None,
    progress: Progress | bool | None = True,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    logger: str | Callable[[str, int], Observer] | None = None,
) -> Comparison:
    """Run every method on every seed, each with its own tuned learning rate (or `lr`), and record it all in `out`.

    Every method's rate is found by the same search, on a seed that is not reported. With `probe` the error terms of a
    step are measured every so many arrivals (see `acefl.probes`). `optimizer` and `schedule` are those of every run, of
    the search too. `out` then holds `compare.json`, one run directory per method and seed, and `report.html`; what is
    returned reads these files, and may stand where their path may.

    If it is interrupted, what was found so far stays in `out/unfinished`, and the same call goes on from there to the
    same end, bit for bit. A finished comparison in `out` is replaced once the new one is complete.

    Args:
        task: A task by name, `"digits(clients=50)"` or your own as `"mymodule:make_task(batch=8)"`; its arguments; or
            a function that makes the task of a seed, which runs in this process alone.
        methods: Settings of the methods, each once.
        out: Directory to write; an earlier comparison there is replaced, an interrupted one gone on with.
        scenario: Speeds, clock and dropouts.
        stop: Budget of each run; with a target, runs end there (not the trials of rates), and the time to it is shown.
        seeds: Seeds to report.
        lr: One rate for all, or one each by label or name, as in `{"ACE": 0.1}`, the rest being tuned; None: tune all.
        lr_centre: Where the search for a rate starts.
        by: The metric that rates are chosen by and methods are ordered by, such as `heldout_client_loss`; None: rates
            by the task's objective.
        evaluations: Per run, at even shares of the budget.
        workers: Processes; None: one per core, at most 8.
        title: Of the report.
        probe: Arrivals between measurements of the error terms; None: none.
        progress: True: what it will cost on stderr, and a bar on a terminal or in a notebook; False: nothing; or a
            function that is called with jobs done, jobs known and the last one's name.
        optimizer, schedule: Of every run.
        logger: For every reported run: `"tensorboard"`, `"wandb"` or `"mlflow"`, with settings as in
            `"tensorboard(directory='logs')"`; or a function that makes an observer for a method's label and a seed,
            with which everything runs in this process alone.
    """
    require(bool(methods), "methods is empty; allowed: at least one")
    check_seeds(seeds)
    require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
    names = [label(rule) for rule in methods]
    for name in names:
        require(names.count(name) == 1, f"method {name} is given twice")
    rates = rates_of(methods, lr)
    for rule in methods:
        own = rule.optimizer is not None or rule.uploads is Upload.MODEL
        require(optimizer is None or not own, f"optimizer is {optimizer}, which {label(rule)} cannot be run with")
    if isinstance(logger, str):
        check_logger(logger)
    task = built_once(task)
    first = build_task(task, seeds[0])
    scenario.check(first.clients, client_names(first))
    objective = Objective.of(first, by, stop)
    work = {name: what for name, what in first.describe().items() if name == "client_work"}
    described = describe(task, first) | work
    trace = scenario.matched(first.clients, client_names(first)).trace if scenario.trace is not None else None
    made_with = {
        "format": FORMAT,
        "task": described,
        "objective": objective.metric,
        **({"by": by} if by is not None else {}),
        "scenario": scenario.record(),
        **({"trace": trace} if trace is not None else {}),
        "stop": stop.record(),
        "seeds": list(seeds),
        **step_record(optimizer, schedule),
        "methods": [
            {"label": label(rule), "rule": settings_of(rule), **imported_from(rule), "lr": rates[label(rule)]}
            for rule in methods
        ],
        "lr_centre": lr_centre,
        "evaluations": evaluations,
        "probe": probe,
    }
    plan = RunSpec(task, methods[0], math.nan, scenario, stop, TUNING_SEED, evaluations, watch=True, probe=probe)
    plan = dataclasses.replace(plan, optimizer=optimizer, schedule=schedule, by=objective, logger=logger)
    contenders = [_contender(dataclasses.replace(plan, rule=rule), rates[label(rule)], lr_centre) for rule in methods]
    if progress is True:
        tuned = sum(rate is None for rate in rates.values())
        plans = [dataclasses.replace(contender.plan, seed=seeds[0]) for contender in contenders]
        cost.say(cost.of_comparison(plans, tuned, seeds, workers))
    with resumable_directory(Path(out), worth_keeping=_has_results) as folder:
        ledger = Ledger(folder / _LEDGER, made_with, keys=("method", "seed", "lr"), what="comparison")
        began = time.perf_counter() - (ledger.rows[-1]["seconds"] if ledger.rows else 0.0)
        _remove_half_written(folder / "runs")
        with shown(progress, "starting workers") as told:
            _run(contenders, seeds, folder / "runs", ledger, began, workers, told)
        kept = ("task", "objective", "by", "scenario", "stop", "seeds")
        content = {
            "format": FORMAT,
            "title": title or f"{len(methods)} methods on {described.get('name', 'a task')}",
            **{name: made_with[name] for name in kept if name in made_with},
            **step_record(optimizer, schedule),
            "methods": [contender.describe(seeds) for contender in contenders],
            "command": command_line("acefl.compare(...)"),
            "machine": machine(),
            "wall_seconds": time.perf_counter() - began,
        }
        write_json(folder / "compare.json", content)
        report.build(folder)
        (folder / _LEDGER).unlink()
    return Comparison(out)


def rates_of(methods: Sequence[Method], lr: float | Mapping[str, float] | None) -> dict[str, float | None]:
    """Every method's learning rate by its label; None: to be tuned. A rate may be given by label, or by name."""
    given = lr if isinstance(lr, Mapping) else {}
    for name, rate in given.items() if isinstance(lr, Mapping) else [("", lr)]:
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        good = rate is None or (number and math.isfinite(rate) and rate > 0)
        require(good, f"lr{f' of {name}' if name else ''} is {rate!r}; allowed: a finite number above 0")
    names = {label(rule): type(rule).__name__ for rule in methods}
    for name in given:
        known = name in names or name in names.values()
        require(known, f"lr is given for {name}, which is not compared; allowed: {', '.join(names)}")
    one = None if isinstance(lr, Mapping) else lr
    return {label: given.get(label, given.get(name, one)) for label, name in names.items()}


def _contender(plan: RunSpec, rate: float | None, centre: float) -> _Contender:
    if rate is None:
        return _Contender(plan, LearningRateSearch(centre))
    return _Contender(dataclasses.replace(plan, lr=rate))


def _has_results(folder: Path) -> bool:
    """Whether a trial or a run has ended: else there is nothing to go on with."""
    ledger = folder / _LEDGER
    return ledger.exists() and len(ledger.read_text(encoding="utf-8").splitlines()) > 1


def _remove_half_written(runs: Path) -> None:
    """What a killed process was about to save."""
    for left in runs.glob(".*") if runs.exists() else ():
        shutil.rmtree(left, ignore_errors=True)


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

    def next_jobs(self, seeds: Sequence[int], folder: Path) -> list[Job]:
        """Rates to try or, once the best is known, the reported runs; nothing while others are still out."""
        if self.search is not None:
            trial = self.plan.as_trial(evaluations=4)
            rates = self.search.ask()
            if rates or not self.search.done:
                trials = {rate: dataclasses.replace(trial, lr=rate) for rate in rates}
                tried = f"{self.name}: tried lr"
                return [Job(RunSpec.score, spec, (self, rate), f"{tried} {rate:.3g}") for rate, spec in trials.items()]
            self.objective.check_found(self.name, self.search.scores.values())
            self.plan = dataclasses.replace(self.plan, lr=self.search.best)
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
            "tuning": [{"lr": rate, "score": self.objective.cost(found)} for rate, found in tried],
            "runs": [f"runs/{run_name(self.name, seed)}" for seed in seeds],
        }


def _run(
    contenders: Sequence[_Contender],
    seeds: Sequence[int],
    folder: Path,
    ledger: Ledger,
    began: float,
    workers: int | None,
    progress: Progress | None,
) -> None:
    """Keep the workers busy: each method's search first, its reported runs as soon as its rate is known.

    Trials and runs that are on the ledger, or in the folder, are not made again.
    """
    done = 0
    first = contenders[0].plan
    with open_jobs(workers, here=callable(first.task) or callable(first.logger)) as jobs:

        def tell(words: str) -> None:
            searching = [one.search for one in contenders if one.search is not None and not one.search.done]
            known = done + len(jobs) + sum(len(seeds) + search.ahead for search in searching)
            if progress is not None:
                progress(done, known, words)

        def start(contender: _Contender) -> None:
            """Whatever is next for a method; what is known of it is told at once, and may lead to more."""
            nonlocal done
            while True:
                due = contender.next_jobs(seeds, folder)
                waiting = [job for job in due if not _is_known(job, ledger)]
                jobs.add(*waiting)
                done += len(due) - len(waiting)
                if waiting or not due or due[0].key[1] is None:
                    return

        for contender in contenders:
            start(contender)
        tell("")
        for end in jobs.ended():
            contender, rate = end.job.key
            score, done = end.result(), done + 1
            spec = end.job.argument
            seconds = time.perf_counter() - began
            ledger.add(method=contender.name, seed=spec.seed, lr=spec.lr, score=score, seconds=seconds)
            if rate is not None:
                contender.search.tell(rate, contender.objective.cost(score))
                start(contender)
            tell(end.job.words)


def _is_known(job: Job, ledger: Ledger) -> bool:
    """Whether a job ended in an earlier call; a trial's search is then told its score."""
    contender, rate = job.key
    if rate is None:
        return bool((job.argument.out / "summary.json").exists())
    row = ledger.find(method=contender.name, seed=job.argument.seed, lr=rate)
    if row is not None:
        worst = contender.objective.worst
        contender.search.tell(rate, contender.objective.cost(worst if row["score"] is None else row["score"]))
    return row is not None


def search_rate(
    task: TaskSource = DEFAULT_TASK,
    rule: Method = PAPER_METHODS[0],
    *,
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    workers: int | None = None,
) -> LearningRateSearch:
    """The learning-rate search of `compare` for one method: its best rate and every rate tried."""
    task = built_once(task)
    built = build_task(task, TUNING_SEED)
    scenario.check(built.clients)
    search = LearningRateSearch()
    plan = RunSpec(task, rule, math.nan, scenario, stop, TUNING_SEED, by=Objective.of(built, None, stop))
    ledger = Ledger(None, {}, keys=("method", "seed", "lr"), what="search")
    _run([_Contender(plan, search)], (), Path(), ledger, 0.0, workers, None)
    return search
