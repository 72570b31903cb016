"""Small runs of every kind, and what must be the same after one was interrupted: for the tests of checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from acefl import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff, Run, Scenario, Stop, tasks
from acefl.core.rule import Method
from acefl.rules import (
    AREA,
    FADAS,
    MIFA,
    Calibrated,
    Clipped,
    DelayedNesterov,
    FedAdam,
    FedAsync,
    FedAvg,
    FedFa,
    FedStaleWeight,
    MaleniaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
    RobustACE,
)
from acefl.runs.simulate import simulation
from acefl.runs.training import Training

CLIENTS, DIM, ARRIVALS = 7, 33, 60
TASK: dict[str, Any] = {"name": "quadratic", "clients": CLIENTS, "dim": DIM, "seed": 3}
FILE = "file"  # stands for a home in a file, wherever the test has room for it

WITH_TABLE: dict[str, Method] = {
    f"{name}-{table}-{home}": dataclasses.replace(rule, table=table, home=home)  # type: ignore[type-var]
    for name, rule in {
        "ACE": ACE(),
        "ACED": ACED(tau=9),
        "CA2FL": CA2FL(buffer=3),
    }.items()
    for table in ("fp32", "bf16", "int8")
    for home in ("memory", FILE)
}
RULES: dict[str, Method] = {
    **WITH_TABLE,
    "ACE-direct": ACE(variant="direct"),
    "ACE-client-held": ACE(variant="client-held"),
    "ACE-seen-samples": ACE(warmup="seen", weights="samples"),
    "ACED-model": ACED(tau=9, freshness="model"),
    "RobustACE": RobustACE(),
    "FedBuff": FedBuff(buffer=4),
    "FedBuff-sqrt": FedBuff(buffer=4, staleness="sqrt"),
    "ASGD": ASGD(),
    "DelayAdaptiveASGD": DelayAdaptiveASGD(threshold=3),
    "RingmasterASGD": RingmasterASGD(threshold=4),
    "RingleaderASGD": RingleaderASGD(),
    "MaleniaSGD": MaleniaSGD(batch=1.2),
    "MIFA": MIFA(buffer=3),
    "FedStaleWeight": FedStaleWeight(buffer=4),
    "FedAsync": FedAsync(),
    "FedFa": FedFa(window=3),
    "AREA": AREA(buffer=2, table="int8"),
    "FADAS": FADAS(buffer=4, threshold=2),
    "FedAvg": FedAvg(),
    "FedAdam-cohort": FedAdam(cohort=3),
    "Calibrated": Calibrated(c=0.5, beta=0.8, buffer=3, table="int8"),
    "RescaledASGD": RescaledASGD(),
    "DelayedNesterov": DelayedNesterov(period=4, c=0.1),
    "Clipped": Clipped(CA2FL(buffer=3, table="int8"), threshold=4.0),
}
SCENARIOS: dict[str, Scenario] = {
    "event": Scenario(spread=8.0),
    "event-churn": Scenario(spread=8.0, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
    "event-early-churn": Scenario(spread=8.0, dropout=0.4, dropout_at=0.0, rejoin_at=0.2),  # in the first round
    "event-few-churn": Scenario(spread=8.0, concurrency=3, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
    "tick-churn": Scenario(clock="tick", delay=2.0, spread=8.0, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
    "sampled-churn": Scenario(clock="sampled", delay=4.0, spread=8.0, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
}


def settings(rule: str, scenario: str, room: Path, arrivals: int = ARRIVALS) -> dict[str, Any]:
    """The arguments of `simulate` and of Simulation, all but the task."""
    chosen: Any = RULES[rule]
    if getattr(chosen, "home", "") == FILE:
        chosen = dataclasses.replace(chosen, home=str(room / "table.bin"))
    stop = Stop(arrivals=arrivals)
    return {"rule": chosen, "lr": 0.05, "scenario": SCENARIOS[scenario], "stop": stop, "seed": 5, "evaluations": 6}


def build(rule: str, scenario: str, room: Path) -> Training:
    return simulation(tasks.build(TASK), **settings(rule, scenario, room))


def fingerprint(run: Run) -> dict[str, Any]:
    """Everything of a run that must not depend on interruptions, so that == is bit for bit and NaN equals NaN."""
    events = run.events
    return {
        "model": hashlib.sha256(run.model.cpu().numpy().tobytes()).hexdigest(),
        "history": json.dumps(run.metrics),
        "events": hashlib.sha256(events.drop(columns="reason").to_numpy(float).tobytes()).hexdigest(),
        "reasons": hashlib.sha256("\n".join(events["reason"]).encode()).hexdigest(),
        "clients": json.dumps(run.clients),
        "participation": run.participation,
        "ended": [run.steps, run.arrivals, run.time.hex(), run.diverged, run.refused],
        "rule": [run.config["label"], run.config["lr"], run.config["seed"]],
    }
