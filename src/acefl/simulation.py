"""One simulated run, from a task and a method to numbers."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from acefl.admission import Gate
from acefl.errors import require
from acefl.fleets.simulated import SimulatedFleet, simulated_fleet
from acefl.loop import run
from acefl.record import FORMAT, Events, Run, machine
from acefl.rules import label
from acefl.server import Server
from acefl.stop import Stop
from acefl.tasks.base import Evaluation, Task
from acefl.timing import Scenario, dropouts, fastest, slowest
from acefl.types import RuleSettings, Step

Progress = Callable[[float], None]  # called now and then with the fraction of the budget spent


def simulate(
    task: Task,
    rule: RuleSettings,
    *,
    lr: float,
    scenario: Scenario | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    evaluations: int = 50,
    progress: Progress | None = None,
) -> Run:
    """Train `task` by `rule` in virtual time, evaluating `evaluations` times at even shares of the budget.

    The same arguments give the same run, bit for bit. With `out` the run is also saved there.
    """
    scenario, stop = scenario or Scenario(), stop or Stop(arrivals=10_000)
    require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
    began = time.perf_counter()
    fleet = simulated_fleet(task, scenario, seed, differences=getattr(rule, "sends_differences", False))
    events = Events()
    model = task.initial()
    server = Server(
        model,
        rule.build(task.clients, model, task.samples),
        lr,
        task.clients,
        gate=Gate(task.clients, model, finite=not model.is_cuda),
        on_arrival=lambda arrival, reason: events.add(fleet.now, arrival, reason),
    )
    watcher = Watcher(task, fleet, evaluations)
    watcher.evaluate(Step(0, 0, 0.0, False), server)
    leavers = dropouts(scenario, task.clients, seed)
    left = back = not leavers
    last_shown = 0.0
    for step in run(server, fleet, stop):
        spent = stop.progress(step)
        if not left and spent >= scenario.dropout_at:
            fleet.drop(leavers)
            left = True
        if not back and scenario.rejoin_at is not None and spent >= scenario.rejoin_at:
            fleet.rejoin(leavers)
            back = True
        if spent >= watcher.due:
            watcher.evaluate(step, server, spent)
            if watcher.diverged:
                break
        if progress is not None and spent - last_shown >= 0.01:
            progress(min(spent, 1.0))
            last_shown = spent
    finished = Run(
        config=configuration(task, rule, lr, scenario, stop, seed, model.numel()),
        metrics=watcher.metrics,
        model=server.model,
        steps=server.version,
        arrivals=server.accepted,
        time=fleet.now,
        participation=server.participation,
        clients=watcher.clients(server),
        events=events.frame(),
        refused=dict(server.refused),
        wall_seconds=time.perf_counter() - began,
        diverged=watcher.diverged,
    )
    if out is not None:
        finished.save(out)
    return finished


class Watcher:
    """Evaluates a run without touching it: overall metrics, the slow and the fast fifth of clients, each client."""

    def __init__(self, task: Task, fleet: SimulatedFleet, evaluations: int) -> None:
        self._task = task
        self._mean_times = fleet.durations.mean
        self._slow = torch.tensor(slowest(self._mean_times))
        self._fast = torch.tensor(fastest(self._mean_times))
        self._evaluations = evaluations
        self._done = 0
        self._last: Evaluation | None = None
        self.metrics: list[dict[str, float]] = []

    @property
    def due(self) -> float:
        """The share of the budget at which to evaluate next."""
        return self._done / self._evaluations

    @property
    def diverged(self) -> bool:
        """Whether the last model was too far gone to go on."""
        return not math.isfinite(self.metrics[-1][self._task.objective])

    def evaluate(self, step: Step, server: Server, spent: float = 0.0) -> None:
        result = self._last = self._task.evaluate(server.model)
        row: dict[str, float] = {"step": step.version, "arrival": step.arrivals, "time": step.time, **result.metrics}
        if result.client_accuracy is not None:
            row["slow_accuracy"] = float(result.client_accuracy[self._slow].mean())
            row["fast_accuracy"] = float(result.client_accuracy[self._fast].mean())
        row["slow_loss"] = float(result.client_loss[self._slow].mean())
        row["fast_loss"] = float(result.client_loss[self._fast].mean())
        self.metrics.append(row)
        self._done = math.floor(spent * self._evaluations + 1e-9) + 1

    def clients(self, server: Server) -> list[dict[str, float]]:
        """One row per client, with its final loss and accuracy on its own data."""
        assert self._last is not None
        accuracy = self._last.client_accuracy
        return [
            {
                "client": client,
                "mean_time": self._mean_times[client],
                "samples": self._task.samples[client],
                "participation": server.participation[client],
                "accuracy": float(accuracy[client]) if accuracy is not None else math.nan,
                "loss": float(self._last.client_loss[client]),
            }
            for client in range(self._task.clients)
        ]


def configuration(
    task: Task, rule: RuleSettings, lr: float, scenario: Scenario, stop: Stop, seed: int, dim: int
) -> dict[str, Any]:
    """Everything that made a run, as plain JSON."""
    settings = dataclasses.asdict(rule) if dataclasses.is_dataclass(rule) and not isinstance(rule, type) else {}
    return {
        "format": FORMAT,
        "method": type(rule).__name__,
        "label": label(rule),
        "rule": settings,
        "lr": lr,
        "seed": seed,
        "task": task.describe(),
        "scenario": dataclasses.asdict(scenario),
        "stop": dataclasses.asdict(stop),
        "clients": task.clients,
        "dim": dim,
        "machine": machine(),
    }
