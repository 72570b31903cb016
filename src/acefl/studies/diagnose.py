"""How wrong is each method's update, and why? Measured, for anybody's task.

Three studies, each recorded in files of its own, and one page made from them: the error terms of the methods on the
task (a comparison like any other, in `methods/`), heterogeneity amplification (`amplification.csv`), and the
convergence rate (`rate.csv`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acefl import report
from acefl.core.errors import one_of, require
from acefl.core.files import atomic_directory, write_json
from acefl.core.progress import Progress, shown
from acefl.core.rule import Method
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.runs.record import FORMAT, command_line, machine
from acefl.studies import amplification, convergence
from acefl.studies.compare import compare
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.results import Diagnosis
from acefl.studies.spec import DEFAULT_SCENARIO, DEFAULT_STOP, DEFAULT_TASK, PAPER_METHODS, RunSpec, check_seeds
from acefl.tasks.sources import TaskSource

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("terms", "amplification", "rate")
_QUICK_TASK = {"name": "quadratic", "clients": 10, "dim": 5}
_QUICK_STOP = Stop(arrivals=200)
_FITTED = 3  # seeds that a slope is fitted to at least

Measured = tuple[Callable[[RunSpec], dict[str, float]], dict[str, Any], RunSpec]  # how, what it is, and the run


def diagnose(
    task: TaskSource | None = None,
    methods: Sequence[Method] = PAPER_METHODS,
    *,
    out: str | os.PathLike[str],
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop | None = None,
    seeds: Sequence[int] = (0,),
    lr: float | Mapping[str, float] | None = None,
    every: int | None = None,
    parts: Sequence[str] = PARTS,
    quick: bool = False,
    workers: int | None = None,
    progress: Progress | bool | None = True,
) -> Diagnosis:
    """Measure every method's noise, bias and delay error, and record it with a page in `out`, which is returned.

    task: the default comparison's when left out. every: arrivals between two measured steps; None: a hundred
    measurements per run. parts: any of `terms` (this task), `amplification` and `rate` (on tasks of their own), all
    with these seeds, `rate` with three at least. quick: everything in seconds, to see what it looks like; its numbers
    mean little.
    """
    for part in parts:
        one_of("part", part, PARTS)
    require(bool(parts), f"parts is empty; allowed: any of {', '.join(PARTS)}")
    check_seeds(seeds)
    task = task or (_QUICK_TASK if quick else DEFAULT_TASK)
    stop = stop or (_QUICK_STOP if quick else DEFAULT_STOP)
    began = time.perf_counter()
    with atomic_directory(Path(out)) as folder, shown(progress, "starting workers") as told:
        if "terms" in parts:
            compare(
                task,
                methods,
                out=folder / "methods",
                scenario=scenario,
                stop=stop,
                seeds=seeds,
                lr=0.05 if quick and lr is None else lr,
                evaluations=10 if quick else 50,
                probe=every or max(1, (stop.arrivals or stop.steps or 10_000) // 100),
                workers=1 if quick else workers,
                title="How wrong is each method's update, and why?",
                progress=told,
            )
        for name, rows in _studies(methods, seeds, parts, quick).items():
            table = measure(rows, 1 if quick else workers, name, told)
            table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        content = {
            "format": FORMAT,
            "parts": list(parts),
            "quick": quick,
            "seeds": list(seeds),
            "command": command_line("acefl.studies.diagnose.diagnose(...)"),
            "machine": machine(),
            "wall_seconds": time.perf_counter() - began,
        }
        write_json(folder / "diagnose.json", content)
        report.build(folder)
    return Diagnosis(out)


def _studies(
    methods: Sequence[Method], seeds: Sequence[int], parts: Sequence[str], quick: bool
) -> dict[str, list[Measured]]:
    studies: dict[str, list[Measured]] = {}
    if "amplification" in parts:
        grid = amplification.QUICK if quick else amplification.Grid()
        cells = [cell for rule in methods for seed in seeds for cell in grid.jobs(rule, seed)]
        studies["amplification"] = [(amplification.measure, what, job) for what, job in cells]
    if "rate" in parts:
        fitted = seeds if len(seeds) >= _FITTED else range(2 if quick else _FITTED)
        points = [
            point for study in (convergence.QUICK if quick else convergence.STUDIES) for point in study.jobs(fitted)
        ]
        studies["rate"] = [(convergence.measure, what, job) for what, job in points]
    return studies


def measure(
    jobs: Iterable[Measured], workers: int | None = None, name: str = "", progress: Progress | None = None
) -> pd.DataFrame:
    """Run the jobs, the longest first, and put what they are and what was measured side by side, a row each."""
    import pandas as pd

    rows = [Job(how, spec, what, name) for how, what, spec in jobs]
    with open_jobs(workers) as runner:
        found = runner.run(rows, first=_longest_first, progress=progress)
    return pd.DataFrame([{**row.key, **measured} for row, measured in zip(rows, found, strict=True)])


def _longest_first(job: Job) -> int:
    return -(job.argument.stop.steps or job.argument.stop.arrivals or 0)
