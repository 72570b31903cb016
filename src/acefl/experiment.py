"""Many runs: compare methods fairly, tune a learning rate.

Every job is described by plain settings and built where it runs, so the same job gives the same numbers in this
process, in a worker, or on another machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from acefl import tasks
from acefl.calls import record_of
from acefl.errors import require
from acefl.optimizers import Optimizer
from acefl.probes import ErrorTerms, Participation
from acefl.record import FORMAT, Run, machine, plain, whole_directory, write_json
from acefl.rules import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff, label
from acefl.schedules import Schedule
from acefl.search import LearningRateSearch
from acefl.simulation import Observer, imported_from, settings_of, simulate
from acefl.stop import Stop
from acefl.tasks.base import Task
from acefl.timing import Scenario
from acefl.types import RuleSettings
from acefl.workers import Pool, open_pool

PAPER_METHODS: tuple[RuleSettings, ...] = (ACE(), ACED(tau=300), CA2FL(), FedBuff(), ASGD(), DelayAdaptiveASGD())
DEFAULT_TASK: Mapping[str, Any] = {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax"}
DEFAULT_SCENARIO = Scenario(clock="event", delay=1.0, spread=30.0, slow="last")
DEFAULT_STOP = Stop(arrivals=10_000)
DEFAULT_SEEDS = (0, 1, 2)
TUNING_SEED = 10_007  # learning rates are chosen on a seed (data split and schedule) that no result is reported on

TaskSource = Mapping[str, Any] | Callable[[int], Task]  # settings, or what builds the task for a seed
Progress = Callable[[int, int, str], None]  # jobs done, jobs known so far, what was done last


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to make."""

    task: TaskSource
    rule: RuleSettings
    lr: float
    scenario: Scenario
    stop: Stop
    seed: int
    evaluations: int = 50
    out: Path | None = None
    watch: bool = False  # record whose updates make up the model, and how stale they are
    probe: int | None = None  # measure the error terms of a step every so many arrivals
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None


def make(job: Job, observers: Sequence[Observer] = ()) -> Run:
    """Make the run a job describes."""
    watchers: list[Observer] = [Participation()] if job.watch else []
    if job.probe is not None:
        watchers.append(ErrorTerms(job.probe))
    return simulate(
        build_task(job.task, job.seed),
        job.rule,
        lr=job.lr,
        scenario=job.scenario,
        stop=job.stop,
        seed=job.seed,
        out=job.out,
        evaluations=job.evaluations,
        observers=[*watchers, *observers],
        optimizer=job.optimizer,
        schedule=job.schedule,
    )


def build_task(source: TaskSource, seed: int) -> Task:
    """The task for a seed; one that is described by settings is built once per process."""
    if callable(source):
        return source(seed)
    require(
        isinstance(source, Mapping), f"task is {type(source).__name__}; allowed: settings, or what builds one by seed"
    )
    on_gpu = str(source.get("device", "cpu")).startswith("cuda")
    return (_build_on_gpu if on_gpu else _build)(json.dumps(plain({**source, "seed": seed}), sort_keys=True))


@lru_cache(maxsize=8)
def _build(description: str) -> Task:
    return tasks.build(json.loads(description))


_on_gpu: dict[str, Task] = {}


def _build_on_gpu(description: str) -> Task:
    """One at a time: the graphs a task has captured hold gigabytes of the device's memory."""
    if description not in _on_gpu:
        _on_gpu.clear()
        gc.collect()
        torch.cuda.empty_cache()
        _on_gpu[description] = tasks.build(json.loads(description))
    return _on_gpu[description]


def built_once(source: TaskSource) -> TaskSource:
    """What builds a task, so that each seed's is built once: loading a user's data may take long."""
    return lru_cache(maxsize=8)(source) if callable(source) else source


def _score(job: Job) -> float:
    run = make(job)
    return math.inf if run.diverged else run.final[run.config["objective"]]


def _save(job: Job) -> float:
    return make(job).wall_seconds


@dataclasses.dataclass
class _Contender:
    rule: RuleSettings
    name: str
    search: LearningRateSearch | None
    lr: float = math.nan


def compare(
    task: TaskSource = DEFAULT_TASK,
    methods: Sequence[RuleSettings] = PAPER_METHODS,
    *,
    out: str | os.PathLike[str],
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    lr: float | None = None,
    lr_centre: float = 0.25,
    evaluations: int = 50,
    workers: int | None = None,
    title: str = "",
    probe: int | None = None,
    progress: Progress | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
) -> Path:
    """Run every method on every seed, each with its own tuned learning rate (or `lr`), and record it all in `out`.

    The search gives every method the same effort, on a seed that is not reported. With `probe` the error terms of a
    step are measured every so many arrivals (see `acefl.probes`). `optimizer` and `schedule` are those of every run, of
    the search too. Returns the directory, which holds `compare.json`, one run directory per method and seed, and
    `report.html`.
    """
    from acefl import report

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
        own = getattr(rule, "optimizer", None) or getattr(rule, "mixes_models", None)
        require(optimizer is None or not own, f"optimizer is {optimizer}, which {label(rule)} cannot be run with")
    task = built_once(task)
    first = build_task(task, seeds[0])
    scenario.check(first.clients)
    began = time.perf_counter()
    with whole_directory(Path(out)) as folder:
        plan = Job(task, methods[0], math.nan, scenario, stop, TUNING_SEED, evaluations, watch=True, probe=probe)
        plan = dataclasses.replace(plan, optimizer=optimizer, schedule=schedule)
        contenders = [
            _Contender(
                rule, name, LearningRateSearch(lr_centre) if lr is None else None, math.nan if lr is None else lr
            )
            for rule, name in zip(methods, names, strict=True)
        ]
        _Schedule(plan, contenders, seeds, folder, progress).run(workers)
        described = first.describe() if callable(task) else dict(task)
        content = {
            "format": FORMAT,
            "title": title or f"{len(methods)} methods on {described.get('name', 'a task')}",
            "task": described,
            "objective": first.objective,
            "scenario": scenario.record(),
            "stop": dataclasses.asdict(stop),
            "seeds": list(seeds),
            **{name: record_of(given) for name, given in (("optimizer", optimizer), ("schedule", schedule)) if given},
            "methods": [_recorded(contender, seeds) for contender in contenders],
            "command": command_line("acefl.compare(...)"),
            "machine": machine(),
            "wall_seconds": time.perf_counter() - began,
        }
        write_json(folder / "compare.json", content)
        report.build(folder)
    return Path(out)


def command_line(otherwise: str) -> str:
    """What a person typed to get here, or how a program would have."""
    return shlex.join(["acefl", *sys.argv[1:]]) if Path(sys.argv[0]).name == "acefl" else otherwise


def _recorded(contender: _Contender, seeds: Sequence[int]) -> dict[str, Any]:
    tried = sorted(contender.search.scores.items()) if contender.search else []
    return {
        "label": contender.name,
        "method": type(contender.rule).__name__,
        "rule": settings_of(contender.rule),
        **imported_from(contender.rule),
        "lr": contender.lr,
        "tuning": [{"lr": rate, "score": score} for rate, score in tried],
        "runs": [f"runs/{run_name(contender.name, seed)}" for seed in seeds],
    }


def run_name(name: str, seed: int) -> str:
    """A directory name for a method and a seed, without characters that shells and browsers trip over."""
    plain = "".join(c if c.isalnum() or c in "=.-" else "_" for c in name).strip("_")
    return f"{plain}-seed{seed}"


class _Schedule:
    """Keeps the workers busy: each method's search first, its reported runs as soon as its rate is known."""

    def __init__(
        self,
        plan: Job,
        contenders: Sequence[_Contender],
        seeds: Sequence[int],
        folder: Path | None,
        progress: Progress | None,
    ) -> None:
        self._plan, self._contenders, self._seeds, self._folder = plan, contenders, seeds, folder
        self._progress = progress
        self._pending: dict[Future[float], tuple[_Contender, float | None, str]] = {}
        self._done = 0

    def run(self, workers: int | None) -> None:
        here = callable(self._plan.task)
        with open_pool(workers, here=here) as pool, as_in_a_worker(enabled=not here):
            try:
                for contender in self._contenders:
                    self._go_on(pool, contender)
                if self._progress is not None:
                    self._progress(0, self._known(), "")
                while self._pending:
                    for future in pool.finished(self._pending):
                        self._collect(pool, future)
            except BaseException:
                pool.abandon()
                raise

    def _collect(self, pool: Pool, future: Future[float]) -> None:
        contender, rate, what = self._pending.pop(future)
        value = future.result()
        self._done += 1
        if rate is not None and contender.search is not None:
            contender.search.tell(rate, value)
            self._go_on(pool, contender)
        if self._progress is not None:
            self._progress(self._done, self._known(), what)

    def _known(self) -> int:
        searching = [c.search for c in self._contenders if c.search is not None and not c.search.done]
        return self._done + len(self._pending) + sum(len(self._seeds) + search.ahead for search in searching)

    def _go_on(self, pool: Pool, contender: _Contender) -> None:
        plan = dataclasses.replace(self._plan, rule=contender.rule)
        if contender.search is not None and not contender.search.done:
            for rate in contender.search.ask():
                job = dataclasses.replace(plan, lr=rate, evaluations=4, watch=False, probe=None)
                self._pending[pool.submit(_score, job)] = (contender, rate, f"{contender.name}: tried lr {rate:.3g}")
            if not contender.search.done:
                return
        if contender.search is not None:
            contender.lr = contender.search.best
        if self._folder is None:
            return
        for seed in self._seeds:
            out = self._folder / "runs" / run_name(contender.name, seed)
            job = dataclasses.replace(plan, lr=contender.lr, seed=seed, out=out)
            self._pending[pool.submit(_save, job)] = (contender, None, f"{contender.name}: seed {seed} done")


@contextlib.contextmanager
def as_in_a_worker(*, enabled: bool) -> Iterator[None]:
    """One thread, so that a sum is taken in the same order, and has the same bits, in this process and in a worker."""
    threads = torch.get_num_threads()
    if enabled:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def search_rate(
    task: TaskSource = DEFAULT_TASK,
    rule: RuleSettings = PAPER_METHODS[0],
    *,
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    lr_centre: float = 0.25,
    workers: int | None = None,
    progress: Progress | None = None,
) -> LearningRateSearch:
    """The learning-rate search of `compare` for one method: its best rate and every rate tried."""
    task = built_once(task)
    scenario.check(build_task(task, TUNING_SEED).clients)
    contender = _Contender(rule, label(rule), LearningRateSearch(lr_centre))
    plan = Job(task, rule, math.nan, scenario, stop, TUNING_SEED)
    _Schedule(plan, [contender], (), None, progress).run(workers)
    assert contender.search is not None
    return contender.search
