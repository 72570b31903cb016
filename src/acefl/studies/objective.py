"""What a search goes by: any metric that evaluations measure, in whichever way it is better."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass

from acefl.core.metrics import check_measured, is_larger_better
from acefl.core.stop import Stop
from acefl.core.types import Step
from acefl.runs.evaluation import Evaluator, by_task
from acefl.runs.record import Run
from acefl.tasks.base import Task

log = logging.getLogger("acefl")


@dataclass(frozen=True)
class Objective:
    """A metric, and which way it is better."""

    metric: str
    larger: bool = False

    @classmethod
    def of(cls, task: Task, by: str | None, stop: Stop | None = None) -> Objective:
        """`by`, or the task's own. A metric that the task does not measure is refused here, before any work.

        So is the target of `stop`: it takes an evaluation of the starting model to know what there is.
        """
        aim = None if stop is None else stop.aim
        if by is None and aim is None:
            return cls(task.objective)
        evaluator = Evaluator(
            by_task(task), 1, lambda: [1.0] * task.clients, objective=task.objective, background=False
        )
        [row] = evaluator.look(Step(0, 0, 0.0, False), 0.0, task.initial())
        for name in (by, aim.metric if aim is not None else None):
            if name is not None:
                check_measured(name, row, evaluator.better)
        metric = task.objective if by is None else by
        return cls(metric, is_larger_better(metric, evaluator.better))

    @property
    def worst(self) -> float:
        """The score of a run that diverged."""
        return -math.inf if self.larger else math.inf

    def score(self, run: Run) -> float:
        """The metric at the end; the worst if the run diverged or has no such number."""
        found = math.nan if run.diverged else run.final.get(self.metric, math.nan)
        return found if math.isfinite(found) else self.worst

    def check_found(self, who: str, scores: Iterable[float]) -> None:
        """Say so where no trial ended with a number: the settings that a search then returns mean nothing."""
        if not any(map(math.isfinite, scores)):
            log.warning("%s: no trial ended with a finite %s, so its tuned settings mean nothing", who, self.metric)

    def cost(self, score: float) -> float:
        """The score as a search takes it: smaller is better."""
        return -score if self.larger else score
