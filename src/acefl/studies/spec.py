"""One run of a study by its settings, built where it runs, so that it gives the same numbers wherever that is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acefl.core.errors import require
from acefl.core.optimizers import Optimizer
from acefl.core.rule import Method
from acefl.core.schedules import Schedule
from acefl.core.settings import label
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.probes import ErrorTerms, Participation
from acefl.rules import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff
from acefl.runs.loggers import Logger, open_logger
from acefl.runs.observers import Observer
from acefl.runs.record import Run, run_name
from acefl.runs.simulate import simulate, simulation
from acefl.runs.training import Training
from acefl.studies.objective import Objective
from acefl.tasks.base import Task
from acefl.tasks.sources import TaskSource, build_task

PAPER_METHODS: tuple[Method, ...] = (ACE(), ACED(tau=300), CA2FL(), FedBuff(), ASGD(), DelayAdaptiveASGD())
DEFAULT_TASK: Mapping[str, Any] = {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax"}
DEFAULT_SCENARIO = Scenario(clock="event", delay=1.0, spread=30.0, slow="last")
DEFAULT_STOP = Stop(arrivals=10_000)
DEFAULT_SEEDS = (0, 1, 2)
TUNING_SEED = 10_007  # learning rates are chosen on a seed (data split and schedule) that no result is reported on


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse none at all, the one that is kept for tuning, and one given twice: it would count for two."""
    require(bool(seeds), "seeds is empty; allowed: at least one")
    require(TUNING_SEED not in seeds, f"seed {TUNING_SEED} is kept for tuning; use another")
    require(len(set(seeds)) == len(seeds), f"seeds are {list(seeds)}; allowed: each once")


@dataclass(frozen=True)
class RunSpec:
    """One run to make."""

    task: TaskSource
    rule: Method
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
    by: Objective | None = None  # what a search goes by; None: the task's objective
    logger: str | Callable[[str, int], Observer] | None = None  # by name, or what makes one for a method and a seed

    def run(self, observers: Sequence[Observer] = ()) -> Run:
        with contextlib.ExitStack() as until_the_end:
            watchers, name = [*observers], label(self.rule)
            if isinstance(self.logger, str):
                watchers.append(until_the_end.enter_context(open_logger(self.logger, run_name(name, self.seed))))
            elif self.logger is not None:
                log = self.logger(name, self.seed)
                watchers.append(until_the_end.enter_context(log) if isinstance(log, Logger) else log)
            task = build_task(self.task, self.seed)
            return simulate(task, self.rule, out=self.out, progress=False, **self._settings(watchers))

    def training(self, task: Task | None = None) -> Training:
        """The run, not begun, without its loggers; task: the same, built already."""
        task = build_task(self.task, self.seed) if task is None else task
        return simulation(task, self.rule, **self._settings())

    def _settings(self, observers: Sequence[Observer] = ()) -> dict[str, Any]:
        probes: list[Observer] = [Participation()] if self.watch else []
        if self.probe is not None:
            probes.append(ErrorTerms(self.probe))
        return {
            "lr": self.lr,
            "scenario": self.scenario,
            "stop": self.stop,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "observers": [*probes, *observers],
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }

    def save(self) -> None:
        """Make the run for the record in `out` alone, which need not travel back from a worker."""
        self.run()

    def score(self) -> float:
        """What the search goes by, at the end."""
        return self.score_of(self.run())

    def score_of(self, run: Run) -> float:
        return (self.by or Objective(run.config["objective"])).score(run)

    def as_trial(self, evaluations: int) -> RunSpec:
        """The same for a search: to the end of its limits, where scores compare, and with nothing recorded."""
        stop = dataclasses.replace(self.stop, target=None)
        return dataclasses.replace(self, stop=stop, evaluations=evaluations, watch=False, probe=None, logger=None)
