"""One run of a study by its settings, built where it runs, so that it gives the same numbers wherever that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acefl.core.optimizers import Optimizer
from acefl.core.rule import Method
from acefl.core.schedules import Schedule
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.probes import ErrorTerms, Participation
from acefl.rules import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff
from acefl.runs.observers import Observer
from acefl.runs.record import Run
from acefl.runs.simulate import simulate
from acefl.studies.objective import Objective
from acefl.tasks.sources import TaskSource, build_task

PAPER_METHODS: tuple[Method, ...] = (ACE(), ACED(tau=300), CA2FL(), FedBuff(), ASGD(), DelayAdaptiveASGD())
DEFAULT_TASK: Mapping[str, Any] = {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax"}
DEFAULT_SCENARIO = Scenario(clock="event", delay=1.0, spread=30.0, slow="last")
DEFAULT_STOP = Stop(arrivals=10_000)
DEFAULT_SEEDS = (0, 1, 2)
TUNING_SEED = 10_007  # learning rates are chosen on a seed (data split and schedule) that no result is reported on


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

    def run(self, observers: Sequence[Observer] = ()) -> Run:
        watchers: list[Observer] = [Participation()] if self.watch else []
        if self.probe is not None:
            watchers.append(ErrorTerms(self.probe))
        return simulate(
            build_task(self.task, self.seed),
            self.rule,
            lr=self.lr,
            scenario=self.scenario,
            stop=self.stop,
            seed=self.seed,
            out=self.out,
            evaluations=self.evaluations,
            observers=[*watchers, *observers],
            optimizer=self.optimizer,
            schedule=self.schedule,
        )

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
        return dataclasses.replace(self, stop=stop, evaluations=evaluations, watch=False, probe=None)
