"""What each method loses to hostile clients, with and without a defence.

    python experiments/ace/attacks/study.py            # runs it all: about twenty minutes of one core
    python experiments/ace/attacks/study.py --show     # the table of what is recorded

Writes `results.json` beside this file and the table of README.md to the terminal. Learning rates are those of the
default comparison, tuned without attackers: nobody knows of an attack when tuning.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

from acefl import (
    ACE,
    ACED,
    ASGD,
    CA2FL,
    DelayAdaptiveASGD,
    FedBuff,
    NormLimit,
    RobustACE,
    Stop,
    attacked,
    simulate,
    tasks,
)
from acefl.core.rule import Method
from acefl.runs.record import machine
from acefl.studies.spec import DEFAULT_SCENARIO
from acefl.tasks import Task
from acefl.tasks.attacks import ATTACKS

HERE = Path(__file__).parent
CLIP = NormLimit(factor=2.0, action="clip")

# name -> (method, learning rate, the gate's limit)
CONTENDERS: dict[str, tuple[Method, float, NormLimit | None]] = {
    "ACE": (ACE(), 0.0625, None),
    "ACED(tau=300)": (ACED(tau=300), 0.031, None),
    "CA2FL": (CA2FL(), 1.0, None),
    "FedBuff": (FedBuff(), 1.0, None),
    "ASGD": (ASGD(), 0.0625, None),
    "DelayAdaptiveASGD": (DelayAdaptiveASGD(), 0.125, None),
    "ACE, clipped": (ACE(), 0.0625, CLIP),
    "FedBuff, clipped": (FedBuff(), 1.0, CLIP),
    "RobustACE, trimmed 0.3": (RobustACE(aggregate="trimmed", trim=0.3), 0.0625, None),
    "RobustACE, median": (RobustACE(), 0.0625, None),
}


@cache
def digits(seed: int) -> Task:
    return tasks.digits(clients=100, alpha=0.1, model="softmax", seed=seed)


def play(name: str, attack: str, fraction: float, seed: int, arrivals: int) -> dict[str, Any]:
    method, lr, limit = CONTENDERS[name]
    task = digits(seed)
    kind, _, times = attack.partition(" x")
    strength = float(times) if times else None
    hostile = attacked(task, kind, fraction=fraction, seed=seed, strength=strength) if fraction else task
    run = simulate(
        hostile,
        method,
        lr=lr,
        scenario=DEFAULT_SCENARIO,
        stop=Stop(arrivals=arrivals),
        seed=seed,
        evaluations=2,
        norm_limit=limit,
    )
    return {
        "contender": name,
        "attack": attack if fraction else "none",
        "fraction": fraction,
        "seed": seed,
        "accuracy": run.final["accuracy"],
        "slow_accuracy": run.final["slow_accuracy"],
        "client_loss": run.final["client_loss"],
        "diverged": run.diverged,
        "wall_seconds": round(run.wall_seconds, 2),
    }


def _one_thread() -> None:
    torch.set_num_threads(1)


def table(runs: list[dict[str, Any]]) -> str:
    """Test accuracy, mean over seeds and half the distance between the best and the worst, in Markdown."""
    columns = list(dict.fromkeys((run["attack"], run["fraction"]) for run in runs))
    head = " | ".join("no attack" if not share else f"{attack} {share:.0%}" for attack, share in columns)
    lines = [f"| method | {head} |", "|---|" + "--:|" * len(columns)]
    for name in dict.fromkeys(run["contender"] for run in runs):
        cells = []
        for attack, share in columns:
            found = [run for run in runs if (run["contender"], run["attack"], run["fraction"]) == (name, attack, share)]
            scores = [run["accuracy"] for run in found]
            cells.append(f"{statistics.fmean(scores):.2f} ± {(max(scores) - min(scores)) / 2:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", nargs="+", default=["sign-flip", "sign-flip x10", *ATTACKS[1:]])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.1, 0.3])
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    parser.add_argument("--show", action="store_true", help="run nothing, print the table of the recorded results")
    options = parser.parse_args()
    if options.show:
        print(table(json.loads(options.out.read_text(encoding="utf-8"))["runs"]))
        return
    shares = [("none", 0.0), *((attack, share) for attack in options.attacks for share in options.fractions)]
    cases = [
        (name, attack, share, seed, options.arrivals)
        for seed in range(options.seeds)
        for attack, share in shares
        for name in CONTENDERS
    ]
    began = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    runs: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.workers, mp_context=spawn, initializer=_one_thread) as pool:
        for run in pool.map(play, *zip(*cases, strict=True)):
            runs.append(run)
            print(
                f"{len(runs)} of {len(cases)}: {run['contender']}, {run['attack']}: {run['accuracy']:.3f}", flush=True
            )
    record = {
        "command": shlex.join(["python", "experiments/ace/attacks/study.py", *sys.argv[1:]]),
        "arrivals": options.arrivals,
        "seeds": options.seeds,
        "machine": machine(),
        "wall_seconds": round(time.perf_counter() - began, 1),
        "runs": runs,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(runs))


if __name__ == "__main__":
    main()
