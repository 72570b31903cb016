"""What a study will cost, said before it starts: how many runs, and how long, timed on a few arrivals of this machine.

The timing is a run of its own that is thrown away: it changes no result.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from acefl.runs.training import never
from acefl.studies.pools import how_many, single_threaded
from acefl.studies.spec import RunSpec
from acefl.tasks.base import Task
from acefl.tasks.sources import build_task

_LIMIT = 0.2  # seconds for the first arrivals, shared by the runs that are timed; they are timed for half as long
_FIRST_RATES = 7  # that a search tries at the least
_TRIAL_EVALUATIONS = 5
_MUCH = 0.25  # of the time: evaluations that take more are worth a word


def of_comparison(plans: Sequence[RunSpec], tuned: int, seeds: Sequence[int], workers: int | None) -> str:
    """plans: one reported run of every method. tuned: how many of them have their learning rate searched."""
    known = _timed(plans)
    runs, trials = len(plans) * len(seeds), _FIRST_RATES * tuned
    looks = runs * (plans[0].evaluations + 1) + trials * _TRIAL_EVALUATIONS
    least = f"at least {trials} to find {_count(tuned, 'learning rate')}, then " if trials else ""
    each = f"{_count(len(plans), 'method')} on {_count(len(seeds), 'seed')}"
    return _sentence(f"{_count(runs + trials, 'run')} ({least}{each})", known, runs + trials, looks, plans[0], workers)


def of_search(plan: RunSpec, budget: float, workers: int | None) -> str:
    """budget: whole runs that the search may take."""
    known, looks = _timed([plan]), budget * _TRIAL_EVALUATIONS
    return _sentence(f"a budget of {budget:g} whole runs", known, budget, looks, plan, workers)


def of_sweep(specs: Sequence[RunSpec], workers: int | None) -> str:
    """specs: the cells that are still to be run."""
    looks = len(specs) * (specs[0].evaluations + 1)
    return _sentence(_count(len(specs), "run"), _timed(specs), len(specs), looks, specs[0], workers)


def say(sentence: str) -> None:
    """Beside the results, for people and for logs."""
    print(sentence, file=sys.stderr, flush=True)


Timed = list[tuple[float, float]]  # seconds that a run's arrivals take, and one evaluation


def _timed(specs: Sequence[RunSpec]) -> Timed:
    """The first of them and the last: a method that keeps a table of all clients costs more than one that does not."""
    chosen = [specs[0], specs[-1]] if len(specs) > 1 else specs
    return [time_run(spec, _LIMIT / len(chosen)) for spec in chosen]


def time_run(spec: RunSpec, limit: float = _LIMIT) -> tuple[float, float]:
    """Seconds that the arrivals of a run take by itself, and one evaluation; NaN where that cannot be told."""
    settings = spec.task if isinstance(spec.task, Mapping) else {}
    if str(settings.get("device", "cpu")).startswith("cuda"):
        return math.nan, math.nan  # what is captured for it here would be missing in the workers' memory
    try:
        with single_threaded():
            return _time(spec, limit)
    except Exception:  # whatever is wrong is said where the run itself is made
        return math.nan, math.nan


def _time(spec: RunSpec, limit: float) -> tuple[float, float]:
    """A first part of the run, and half of it again: what is traced or compiled the first time is not every run's."""
    task = build_task(spec.task, spec.seed)
    _, share = _arrivals(spec, task, limit=limit)
    seconds, share = _arrivals(spec, task, limit=limit / 2, share=share)
    began = time.perf_counter()
    task.evaluate(task.initial())
    return (seconds / share if share else math.nan), time.perf_counter() - began


def _arrivals(spec: RunSpec, task: Task, *, limit: float = math.inf, share: float = 1.0) -> tuple[float, float]:
    """Arrivals for so many seconds, this share of the budget at most: the seconds they took, and their share."""
    training = dataclasses.replace(spec, lr=1e-9, evaluations=1, probe=None).training(task)
    steps = training.advance(never)
    _, first = next(steps)  # after the evaluation at the start
    began = now = time.perf_counter()
    last = first
    for _, last in steps:
        now = time.perf_counter()
        if last >= share or now - began > limit:
            break
    return now - began, last - first


def _sentence(work: str, known: Timed, runs: float, looks: float, plan: RunSpec, workers: int | None) -> str:
    """looks: evaluations of all runs together."""
    training = runs * statistics.fmean(arrivals for arrivals, _ in known)
    evaluating = looks * statistics.fmean(each for _, each in known)
    seconds = training + evaluating
    here = callable(plan.task) or callable(plan.logger)
    count = 1 if here else max(1, how_many(workers))
    if not math.isfinite(seconds):
        return f"to do: {work}"
    much = f", {evaluating / seconds:.0%} of it evaluations" if evaluating > _MUCH * seconds else ""
    started = ", once they have started" if count > 1 else ""
    return f"to do: {work}, about {_duration(seconds / count)} with {_count(count, 'worker')}{started}{much}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}s"
    return _count(max(1, round(seconds)), "second")


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}" + ("s" if number != 1 else "")
