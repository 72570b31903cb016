"""Kill runs with SIGKILL at random moments, let them go on, and compare the end with a run that was never killed.

`python -m tests.killing --kills 500` does it and prints what happened as JSON. This process only starts others, by fork
and before any library has started a thread, so that a life costs milliseconds and not the seconds of importing torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import safetensors.torch
import torch
from tests import resumable

import acefl
from acefl import Every, InvalidInput, record, simulate, tasks
from acefl.checkpoint import Checkpoints

EVERY = Every(arrivals=10)
LONGER = 2.0  # than the run without checkpoints: about what writing them and the record takes
MOST_LIVES = 6
ARRIVALS = 150
WARM = (pd, pyarrow.parquet, safetensors.torch)  # loaded here, so that no life spends its time on it


def in_a_child(job: Callable[[], None]) -> int:
    """Start a job in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        job()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def live(rule: str, scenario: str, room: Path) -> None:
    """One life: start the run, or go on with it; its last deed is to write down how it ended."""
    where = room / "run"
    with suppress(InvalidInput, FileNotFoundError):
        at = Checkpoints(where / record.CHECKPOINT).load()["simulation"]
        with open(room / "resumed-at", "a") as log:
            log.write(f"{at['server']['accepted'] if at else 0}\n")
    try:
        run = acefl.resume(where)
    except InvalidInput:  # there is nothing yet to go on with; if there is, the next line refuses to overwrite it
        how = resumable.settings(rule, scenario, room, ARRIVALS)
        run = simulate(tasks.build(resumable.TASK), **how, out=where, checkpoint=EVERY)
    loaded = acefl.load(where)
    assert torch.equal(loaded.model, run.model)
    assert not (where / record.CHECKPOINT).exists()
    (room / "fingerprint.json").write_text(json.dumps(resumable.fingerprint(run)))


def never_killed(rule: str, scenario: str, room: Path) -> None:
    """The run without checkpoints."""
    run = simulate(tasks.build(resumable.TASK), **resumable.settings(rule, scenario, room, ARRIVALS))
    (room / "fingerprint.json").write_text(json.dumps(resumable.fingerprint(run)))


def outcome(room: Path) -> Any:
    return json.loads((room / "fingerprint.json").read_text())


def kill_often(kills: int, seed: int) -> dict[str, Any]:
    """Go through all rules and scenarios in random order until so many lives have ended in SIGKILL."""
    draw = random.Random(seed)
    killed, runs, resumed_at, different = 0, 0, [], []
    cases: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    began = time.perf_counter()
    while killed < kills:
        if not cases:
            cases = [(rule, scenario) for rule in resumable.RULES for scenario in resumable.SCENARIOS]
            draw.shuffle(cases)
        rule, scenario = cases.pop()
        room = Path(tempfile.mkdtemp(prefix="acefl-kill-"))
        try:
            started = time.perf_counter()
            if ended(in_a_child(lambda: never_killed(rule, scenario, room))):  # noqa: B023
                raise SystemExit(f"{rule}, {scenario}: the run failed without being killed")
            lasts = LONGER * (time.perf_counter() - started)
            expected = outcome(room)
            (room / "fingerprint.json").unlink()
            lives = 0
            while True:
                child = in_a_child(lambda: live(rule, scenario, room))  # noqa: B023
                lives += 1
                if lives < MOST_LIVES and killed < kills:
                    time.sleep(draw.uniform(0, lasts))
                    os.kill(child, signal.SIGKILL)
                code = ended(child)
                if code != -signal.SIGKILL:
                    break
                killed += 1
            runs += 1
            seen.add((rule, scenario))
            if code or outcome(room) != expected:
                different.append([rule, scenario])
            with suppress(FileNotFoundError):
                resumed_at += [int(line) for line in (room / "resumed-at").read_text().split()]
        finally:
            shutil.rmtree(room, ignore_errors=True)
    return {
        "kills": killed,
        "runs": runs,
        "different": different,
        "cases": len(seen),
        "of cases": len(resumable.RULES) * len(resumable.SCENARIOS),
        "resumed after arrivals": {
            "never": kills - len(resumed_at),
            "0": resumed_at.count(0),
            **{f"up to {50 * k}": sum(50 * k - 50 < at <= 50 * k for at in resumed_at) for k in (1, 2, 3)},
        },
        "seed": seed,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    content = kill_often(asked.kills, asked.seed)
    content |= {
        "command": f"python -m tests.killing --kills {asked.kills}",
        "date": time.strftime("%Y-%m-%d"),
        "machine": record.machine(),
    }
    print(json.dumps(content, indent=2))
    sys.exit(bool(content["different"]))


if __name__ == "__main__":
    main()
