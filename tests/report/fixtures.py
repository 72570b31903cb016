"""A comparison directory made up by hand: plausible numbers in the recorded format, without running anything.

Written with plain pandas and json, so that the report is tested against the format and not against its writer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

MACHINE = {"cpu": "a test", "cores": 2, "python": "3.11.0", "torch": "2.13.0", "acefl": "0.1.0"}
SCENARIO = {
    "clock": "event",
    "delay": 1.0,
    "law": "exponential",
    "spread": 30.0,
    "slow": "last",
    "concurrency": None,
    "dropout": 0.0,
}
TASKS = {
    "digits": {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax", "seed": 0},
    "quadratic": {"name": "quadratic", "clients": 100, "dim": 50, "heterogeneity": 1.0, "noise": 0.5, "seed": 0},
}


@dataclass(frozen=True)
class Invented:
    """A method and where its numbers should end up."""

    label: str
    method: str
    rule: dict[str, Any]
    lr: float
    accuracy: float
    slow: float
    fast: float
    gap: float
    buffer: int = 1


SIX = (
    Invented("ACE", "ACE", {"table": "fp32", "variant": "incremental"}, 0.2, 0.953, 0.970, 0.968, 2e-5),
    Invented("ACED", "ACED", {"tau": 300}, 0.2, 0.938, 0.912, 0.972, 3e-3),
    Invented("FedBuff", "FedBuff", {"buffer": 10}, 1.0, 0.921, 0.881, 0.980, 0.21, buffer=10),
    Invented("CA2FL", "CA2FL", {"buffer": 10}, 1.0, 0.951, 0.969, 0.969, 3e-5, buffer=10),
    Invented("ASGD", "ASGD", {}, 0.05, 0.915, 0.869, 0.981, 0.33),
    Invented("DelayAdaptiveASGD", "DelayAdaptiveASGD", {"threshold": None}, 0.1, 0.908, 0.848, 0.983, 0.41),
)


def write_comparison(
    directory: Path,
    methods: tuple[Invented, ...] = SIX,
    seeds: tuple[int, ...] = (0, 1, 2),
    task: str = "digits",
    clients: int = 100,
    arrivals: int = 2000,
    evaluations: int = 60,
) -> Path:
    """Write a whole comparison and return its directory."""
    described = TASKS[task] | {"clients": clients}
    entries = []
    for method in methods:
        runs = [f"runs/{method.label}-seed{seed}" for seed in seeds]
        for seed, where in zip(seeds, runs, strict=True):
            write_run(directory / where, method, seed, task, clients, arrivals, evaluations)
        entries.append(
            {
                "label": method.label,
                "method": method.method,
                "rule": method.rule,
                "lr": method.lr,
                "tuning": [_trial(method, step) for step in range(-3, 3)],
                "runs": runs,
            }
        )
    _write_json(
        directory / "compare.json",
        {
            "format": 1,
            "title": f"Asynchronous methods on {task}",
            "task": described,
            "scenario": SCENARIO,
            "stop": {"arrivals": arrivals, "steps": None, "time": None},
            "seeds": list(seeds),
            "methods": entries,
            "command": f"acefl compare --task {task} --clients {clients} --arrivals {arrivals}",
            "machine": MACHINE,
            "wall_seconds": 120.3,
        },
    )
    return directory


def write_run(
    directory: Path,
    method: Invented,
    seed: int,
    task: str = "digits",
    clients: int = 100,
    arrivals: int = 2000,
    evaluations: int = 60,
) -> Path:
    """Write one run directory and return it."""
    directory.mkdir(parents=True)
    chance = np.random.default_rng([seed, sum(method.label.encode())])
    # Every method meets the same delays, but ACE's first round waits for everybody, so its arrivals are others.
    delays = np.random.default_rng([seed, method.method in ("ACE", "ACED")])
    events = _events(delays, clients, arrivals, method.buffer)
    speeds = 30.0 ** (np.arange(clients) / max(clients - 1, 1))
    history = _history(chance, method, task, events, evaluations)
    own = np.interp(np.linspace(0, 1, clients), [0, 0.5, 1], [method.fast, method.accuracy, method.slow])
    own = np.clip(own + chance.normal(0, 0.012, clients), 0, 1)
    digits = task == "digits"
    pd.DataFrame(
        {
            "client": np.arange(clients),
            "mean_time": speeds,
            "samples": chance.integers(5, 30, clients),
            "participation": np.bincount(events["client"], minlength=clients),
            "accuracy": own if digits else np.nan,
            "loss": 2.5 * (1 - own) + 0.05,
            **({"heldout_accuracy": own - 0.02, "heldout_loss": 2.6 * (1 - own) + 0.05} if digits else {}),
        }
    ).to_parquet(directory / "clients.parquet")
    events.to_parquet(directory / "events.parquet")
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in history))
    config = {
        "format": 1,
        "method": method.method,
        "label": method.label,
        "rule": method.rule,
        "lr": method.lr,
        "seed": seed,
        "task": TASKS[task] | {"clients": clients, "seed": seed},
        "scenario": SCENARIO,
        "stop": {"arrivals": arrivals, "steps": None, "time": None},
        "clients": clients,
        "dim": 650,
        "machine": MACHINE,
    }
    _write_json(directory / "config.json", config)
    last = history[-1]
    _write_json(
        directory / "summary.json",
        {
            "final": {key: value for key, value in last.items() if key not in ("step", "arrival", "time")},
            "steps": last["step"],
            "arrivals": arrivals,
            "time": last["time"],
            "uploads": arrivals,
            "wall_seconds": 3.5,
            "diverged": False,
            "refused": {},
        },
    )
    return directory


def _events(chance: np.random.Generator, clients: int, arrivals: int, buffer: int) -> pd.DataFrame:
    """Every client always busy with tasks of exponential length, its mean growing 30-fold from first to last."""
    speeds = 30.0 ** (np.arange(clients) / max(clients - 1, 1))
    most = int(8 * arrivals / clients) + 60
    finished = np.cumsum(chance.exponential(speeds, size=(most, clients)), axis=0)
    order = np.argsort(finished, axis=None, kind="stable")[:arrivals]
    who = order % clients
    dispatched_at: dict[int, int] = {}
    trained_on = []
    for arrival, client in enumerate(who.tolist()):
        trained_on.append(dispatched_at.get(client, 0))
        dispatched_at[client] = (arrival + 1) // buffer
    return pd.DataFrame(
        {
            "time": finished.ravel()[order],
            "client": who,
            "trained_on": trained_on,
            "version": np.arange(arrivals) // buffer,
            "accepted": True,
            "reason": "",
        }
    )


def _history(
    chance: np.random.Generator, method: Invented, task: str, events: pd.DataFrame, evaluations: int
) -> list[dict[str, float]]:
    arrivals = len(events)
    shift = chance.normal(0, 0.004)
    rows = []
    for arrival in np.linspace(0, arrivals, evaluations + 1).astype(int).tolist():
        left = math.exp(-9 * arrival / arrivals)
        where = {
            "step": arrival // method.buffer,
            "arrival": arrival,
            "time": float(events["time"].iloc[arrival - 1]) if arrival else 0.0,
        }
        wobble = chance.normal(0, 0.003 + 0.04 * left, 4)
        if task == "digits":
            levels = (method.accuracy, method.slow, method.fast)
            scores = [
                min(1.0, max(0.0, level + shift - (level - 0.1) * left + noise))
                for level, noise in zip(levels, wobble, strict=False)
            ]
            loss = 0.12 + 2.2 * (1 - scores[1]) + 0.02 * wobble[3]
            named = ("accuracy", "heldout_slow_accuracy", "heldout_fast_accuracy")
            measured = dict(zip(named, scores, strict=True))
            measured |= {f"{who}_accuracy": 0.5 + scores[k] / 2 for k, who in ((1, "slow"), (2, "fast"))}
            measured |= {"heldout_worst_accuracy": 0.8 * scores[1], "worst_accuracy": 0.9 * scores[1]}
            measured |= {"loss": 0.9 * loss, "client_loss": loss}
        else:
            gap = (method.gap + 20 * math.exp(-16 * arrival / arrivals)) * math.exp(8 * wobble[0])
            measured = {"gap": gap, "grad_norm": math.sqrt(gap), "client_loss": 1 + gap, "loss": 1 + gap}
        rows.append(where | measured)
    return rows


def _trial(method: Invented, step: int) -> dict[str, float | None]:
    """The chosen lr at step 0, worse on both sides, diverged at the largest."""
    loss = 0.12 + 2.2 * (1 - method.slow) + 0.08 * step**2
    return {"lr": method.lr * 2.0**step, "score": None if step == 2 else loss}


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1))
