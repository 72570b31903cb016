"""The convergence claim, measured: the mean squared gradient over T steps against T and n, with lr = c sqrt(n / T).

The paper's Theorem 1 bounds the mean over all steps of ||grad F(w)||^2 for ACE by terms in 1 / sqrt(n T), plus one in
1 / T: a slope of -1/2 in log-log axes, against the number of steps and against the number of clients. The mean over the
second half of the run alone tells what the whole run's is made of: it has that slope only where sampling noise is all
that is left, falls faster where the start is not yet forgotten, and not at all where a bias stays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from acefl.core.rule import Method
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.probes import TrueGradient
from acefl.rules import ACE, ASGD, label
from acefl.runs.record import Run
from acefl.studies.spec import RunSpec

_SPREAD = 10.0  # of client speeds: the theorem allows any bounded delay


@dataclasses.dataclass(frozen=True)
class Study:
    """One line of points: a task and a method, with either the number of steps or that of clients growing."""

    task: str
    settings: dict[str, Any]
    rule: Method
    against: str  # T or n
    steps: tuple[int, ...]
    clients: tuple[int, ...]
    c: float  # lr = c sqrt(n / T)

    def jobs(self, seeds: Sequence[int]) -> list[tuple[dict[str, Any], RunSpec]]:
        """Every point of the study on every seed: what it is, and the run that measures it."""
        points = [(steps, clients) for steps in self.steps for clients in self.clients]
        return [
            (
                {
                    "task": self.task,
                    "method": label(self.rule),
                    "against": self.against,
                    "T": steps,
                    "n": clients,
                    "seed": seed,
                    "lr": self.c * math.sqrt(clients / steps),
                },
                RunSpec(
                    task={**self.settings, "clients": clients},
                    rule=self.rule,
                    lr=self.c * math.sqrt(clients / steps),
                    scenario=Scenario(spread=_SPREAD),
                    stop=Stop(steps=steps),
                    seed=seed,
                    evaluations=200,
                ),
            )
            for steps, clients in points
            for seed in seeds
        ]


_QUADRATIC: dict[str, Any] = {"name": "quadratic", "dim": 20, "noise": 1.0}
_MLP: dict[str, Any] = {"name": "digits", "model": "mlp", "alpha": 0.1}
STUDIES = (
    Study("quadratic", _QUADRATIC, ACE(), "T", (500, 1_000, 2_000, 4_000, 8_000, 16_000), (10,), 0.1),
    Study("quadratic", _QUADRATIC, ASGD(), "T", (500, 1_000, 2_000, 4_000, 8_000, 16_000), (10,), 0.1),
    Study("digits mlp", _MLP, ACE(), "T", (1_000, 2_000, 4_000, 8_000, 16_000), (10,), 0.3),
    Study("quadratic", _QUADRATIC, ACE(), "n", (8_000,), (5, 10, 20, 40), 0.1),
    Study("digits mlp", _MLP, ACE(), "n", (8_000,), (5, 10, 20, 40), 0.3),
)
QUICK = tuple(
    dataclasses.replace(study, steps=(50, 100, 200), clients=(3,))
    if study.against == "T"
    else dataclasses.replace(study, steps=(100,), clients=(3, 6, 12))
    for study in STUDIES
    if study.task == "quadratic"
)


def measure(spec: RunSpec) -> dict[str, float]:
    """The mean squared norm of the true gradient, over the whole run and over its second half."""
    return squared_gradient(spec.run([TrueGradient()]))


def squared_gradient(run: Run) -> dict[str, float]:
    """Means over steps, by the trapezoidal rule through the evaluations."""
    steps = run.history["step"].to_numpy(float)
    squares = run.history["grad_norm"].to_numpy(float) ** 2
    late = steps >= steps[-1] / 2
    return {name: _mean(steps[part], squares[part]) for name, part in (("whole", slice(None)), ("second_half", late))}


def _mean(steps: Any, values: Any) -> float:
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))
