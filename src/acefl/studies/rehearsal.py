"""A run without its work: who arrives when does not depend on what is computed. So the staleness of a method whose
steps take now more arrivals, now fewer is measured beforehand, in a moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from acefl.core.loop import run
from acefl.core.rule import Method
from acefl.core.server import Server
from acefl.core.stop import Stop
from acefl.core.types import Arrival, Vector
from acefl.fleets.scenario import Scenario
from acefl.fleets.simulated import simulated_fleet
from acefl.probes.shadow import shadow_rule
from acefl.rules import METHODS, label
from acefl.tasks.base import Evaluation

LEAST, MOST = 2_000, 10_000  # arrivals
STEPS = 20  # enough of them to end between the two
_WARMUP = 0.25  # the share of a rehearsal that is not counted: at the start everybody works on the first model


@dataclass(frozen=True)
class Rehearsal:
    """Means over a rehearsal, once it was under way."""

    staleness: float
    arrivals_per_step: float


class _NoWork:
    """A task of which every update is zero."""

    objective, batch_limit = "loss", 4_096

    def __init__(self, clients: int) -> None:
        self.clients, self.samples = clients, [1] * clients

    def initial(self) -> Vector:
        return torch.zeros(1)

    def updates(self, models: Vector, clients: list[int], keys: list[int]) -> Vector:
        return torch.zeros(len(clients), 1)

    def evaluate(self, model: Vector) -> Evaluation:
        raise NotImplementedError("nothing is learnt")

    def describe(self) -> dict[str, Any]:
        return {}


def rehearse(rule: Method, scenario: Scenario, clients: int) -> Rehearsal:
    """Let the method's rule go through the scenario with updates of one number, nobody dropping out."""
    task = _NoWork(clients)
    ages: list[tuple[int, int]] = []  # (staleness, version) of every arrival

    def note(arrival: Arrival, reason: str) -> None:
        ages.append((arrival.staleness, arrival.version))

    built = shadow_rule(rule, clients, task.initial(), task.samples)
    server = Server(task.initial(), built, 1.0, clients, on_arrival=note)
    fleet = simulated_fleet(task, scenario, seed=0)
    for step in run(server, fleet, Stop(arrivals=MOST)):
        if step.arrivals >= LEAST and step.version >= STEPS:
            break
    counted = ages[int(_WARMUP * len(ages)) :]
    steps = server.version - counted[0][1]
    return Rehearsal(sum(age for age, _ in counted) / len(counted), len(counted) / steps if steps else math.inf)


def expectation(rule: Method, scenario: Scenario, clients: int) -> str:
    """What staleness to expect of this method, in a sentence, before anything is run."""
    if rule.rounds:
        return "rounds without staleness: each takes as long as its slowest client"
    if type(rule) in METHODS.values() and rule.arrivals_per_step is not None:
        return scenario.expectation(clients, rule.arrivals_per_step)
    found = rehearse(rule, scenario, clients)
    if found.arrivals_per_step == math.inf:
        return f"clock {scenario.clock}: expect hardly any step; {label(rule)} made none in {MOST:,} arrivals on trial"
    return (
        f"clock {scenario.clock}: expect a mean staleness of about {found.staleness:.2g} steps "
        f"(on trial, one step per {found.arrivals_per_step:.2g} arrivals)"
    )
