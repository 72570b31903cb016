"""Heterogeneity amplification: bias and delay error as the spread of speeds and the heterogeneity of data grow.

On quadratics, where heterogeneity is a number. All methods move at the same pace: a method that steps once per M
arrivals has M times the learning rate of one that steps at each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from acefl.core.rule import Method
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.rules import label
from acefl.studies.spec import RunSpec


@dataclasses.dataclass(frozen=True)
class Grid:
    """Which speeds and data, and how long each run is."""

    spreads: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    heterogeneities: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    clients: int = 20
    dim: int = 20
    noise: float = 0.5
    arrivals: int = 3_000
    lr_per_arrival: float = 0.01

    def jobs(self, rule: Method, seed: int) -> list[tuple[dict[str, Any], RunSpec]]:
        """Every cell for one method: what it is, and the run that measures it."""
        per_step = rule.arrivals_per_step or 1
        return [
            (
                {"method": label(rule), "spread": spread, "heterogeneity": heterogeneity, "seed": seed},
                RunSpec(
                    task={
                        "name": "quadratic",
                        "clients": self.clients,
                        "dim": self.dim,
                        "noise": self.noise,
                        "heterogeneity": heterogeneity,
                    },
                    rule=rule,
                    lr=self.lr_per_arrival * per_step,
                    scenario=Scenario(spread=spread),
                    stop=Stop(arrivals=self.arrivals),
                    seed=seed,
                    evaluations=20,
                    probe=max(1, self.arrivals // 100),
                ),
            )
            for spread in self.spreads
            for heterogeneity in self.heterogeneities
        ]


QUICK = Grid(spreads=(1.0, 10.0), heterogeneities=(0.0, 1.0), clients=6, dim=4, arrivals=200)


def measure(spec: RunSpec) -> dict[str, float]:
    """The terms of the second half of the run, when the start is forgotten, and how near the optimum it ended."""
    run = spec.run()
    late = run.history[run.history["arrival"] >= run.arrivals / 2]
    return {name: float(late[name].mean()) for name in ("noise", "bias", "delay", "mse", "gap")}
