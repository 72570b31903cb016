"""Runs of 1,000 clients that come and go and send nonsense, saved and killed and resumed, for as long as one likes.

`python -m tests.soak.soaking --minutes 30` prints what happened as JSON. A life goes from run to run until it is
killed; the next one goes on where it was. After each run it writes down how the run ended and how much memory it then
has. What a run keeps per arrival (32 bytes of events) is given back at its end, so over many runs memory must be flat.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tests.killing import ended, in_a_child, tell
from tests.resumable import fingerprint

import acefl
from acefl import ACE, ACED, CA2FL, Every, FedBuff, InvalidInput, NormLimit, Run, Scenario, Stop, simulate, tasks
from acefl.core import rng as keyed
from acefl.core.rule import Method
from acefl.core.types import Vector

CLIENTS, DIM, ARRIVALS = 1000, 64, 20_000
EVERY = Every(arrivals=1000)
RULES: tuple[Method, ...] = (ACE(table="int8"), ACED(tau=2000), CA2FL(buffer=20), FedBuff(buffer=20))
SHORTEST_LIFE = 5.0  # seconds
FAULTS, FAULT_STREAM = (math.nan, math.inf, 1000.0), 97
COMPARED = 3  # runs that were killed and are made once more, without checkpoints, to compare


class Faulty:
    """The task, of whose uploads one in twenty is not a number, infinite or a thousand times too long."""

    def __init__(self, task: tasks.Task) -> None:
        self._task = task
        self.clients, self.samples, self.objective = task.clients, task.samples, task.objective
        self.batch_limit = task.batch_limit

    def describe(self) -> dict[str, Any]:
        return {**self._task.describe(), "faulty": True}

    def initial(self) -> Vector:
        return self._task.initial()

    def evaluate(self, model: Vector) -> tasks.Evaluation:
        return self._task.evaluate(model)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        sent = self._task.updates(models, clients, keys).clone()
        for row, key in enumerate(keys):
            fault = keyed.key(key, FAULT_STREAM) % 60
            if fault < len(FAULTS):
                sent[row] *= FAULTS[fault]
        return sent


def make(task: tasks.Task, number: int, **how: Any) -> Run:
    """Run number so-and-so: a third of the clients leave and come back, and the gate is at work."""
    scenario = Scenario(spread=30.0, dropout=0.33, dropout_at=0.3, rejoin_at=0.6)
    rule = RULES[number % len(RULES)]
    stop = Stop(arrivals=ARRIVALS)
    how |= {"norm_limit": NormLimit(factor=50.0)}
    return simulate(task, rule, lr=0.02, scenario=scenario, stop=stop, seed=number, evaluations=10, **how)


def live(task: tasks.Task, room: Path) -> None:
    """Go on with the run that was interrupted, and then from run to run."""
    number = len(list(room.glob("*.json")))
    while True:
        where = room / f"run-{number}"
        try:
            run = acefl.resume(where, task=task)
        except InvalidInput:
            run = make(task, number, out=where, checkpoint=EVERY)
        found = {"run": fingerprint(run), "life": os.getpid(), "arrivals": run.arrivals, "refused": run.refused}
        del run
        shutil.rmtree(where)
        gc.collect()
        (room / "writing").write_text(json.dumps({**found, "memory": resident()}))
        (room / "writing").rename(room / f"{number}.json")
        number += 1


def resident() -> int:
    """Bytes of memory this process has. Pages it still shares with its parent count in full: else it would seem to
    grow by merely touching them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])


def soak(minutes: float, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    task = Faulty(tasks.quadratic(clients=CLIENTS, dim=DIM))
    room = Path(tempfile.mkdtemp(prefix="acefl-soak-"))
    end = time.monotonic() + 60 * minutes
    lives, killed_during = 0, set()
    try:
        while (left := end - time.monotonic()) > 0:
            child = in_a_child(live, task, room)
            lives += 1
            time.sleep(min(left, max(SHORTEST_LIFE, draw.expovariate(8 / (60 * minutes)))))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            if code != -signal.SIGKILL:
                raise SystemExit(f"life {lives} ended by itself with code {code}")
            killed_during.add(len(list(room.glob("*.json"))))
        if not list(room.glob("*.json")):
            raise SystemExit(f"no run was finished in {minutes:g} minutes; allow more")
        done = [json.loads((room / f"{k}.json").read_text()) for k in range(len(list(room.glob("*.json"))))]
        compared = sorted(killed_during & set(range(len(done))))[:COMPARED]
        different = []
        for number in compared:
            (room / "reference").unlink(missing_ok=True)
            ended(in_a_child(lambda k: (room / "reference").write_text(json.dumps(fingerprint(make(task, k)))), number))
            if json.loads((room / "reference").read_text()) != done[number]["run"]:
                different.append(number)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return {
        "minutes": minutes,
        "clients": CLIENTS,
        "lives killed": lives,
        "runs finished": len(done),
        "arrivals": sum(run["arrivals"] for run in done),
        "refused": dict(sum((Counter(run["refused"]) for run in done), Counter())),
        "runs killed and compared with runs never killed": compared,
        "different": different,
        "memory MB": memory(done),
        "seed": seed,
    }


def memory(done: list[dict[str, Any]]) -> dict[str, Any]:
    """How memory changed in the longest life, by the means of its first and last half; its first run warms up."""
    lives: dict[int, list[float]] = {}
    for run in done:
        lives.setdefault(run["life"], []).append(run["memory"] / 1e6)
    longest = max(lives.values(), key=len)[1:]
    half = len(longest) // 2
    return {
        "runs in the longest life": len(longest) + 1,
        "first half": round(sum(longest[:half]) / max(half, 1), 1),
        "second half": round(sum(longest[-half:]) / max(half, 1), 1),
        "least": round(min(longest, default=0.0), 1),
        "most": round(max(longest, default=0.0), 1),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    tell(soak(asked.minutes, asked.seed), "tests.soak.soaking")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
