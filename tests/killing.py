"""Kill runs with SIGKILL at random moments, let them go on, and compare the end with a run that was never killed.

`python -m tests.killing --kills 500` does it and prints what happened as JSON. This process only starts others, by fork
and before any library has started a thread, so that a life costs milliseconds and not the seconds of importing torch.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import safetensors.torch
import torch

import acefl
from acefl import Every, InvalidInput, simulate, tasks
from acefl.core.files import CHECKPOINT
from acefl.runs import record
from acefl.runs.checkpoint import Checkpoints
from tests import resumable

EVERY = Every(arrivals=10)
LONGER = 1.5  # a life may last so many times what the run takes without checkpoints: most end before it does
MOST_LIVES = 3  # of one run
ARRIVALS = 100
PR_SET_PDEATHSIG = 1
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock")
WARM = (pd, pyarrow.parquet, safetensors.torch)  # loaded here, so that no life spends its time on it


def in_a_child(job: Callable[..., None], *arguments: Any) -> int:
    """Start a job in a process of its own; returns its id."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody outlives the one who started it
        assert os.getppid() == parent
        job(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def live(rule: str, scenario: str, room: Path, arrivals: int = ARRIVALS, die_before: int | None = None) -> None:
    """One life: start the run, or go on with it; its last deed is to write down how it ended."""
    where = room / "run"
    if die_before is not None:
        die_before_change(die_before)
    with suppress(InvalidInput, FileNotFoundError):
        at = Checkpoints(where / CHECKPOINT).load()["training"]
        with open(room / "resumed-at", "a") as log:
            log.write(f"{at['server']['accepted'] if at else 0}\n")
    try:
        run = acefl.resume(where)
    except InvalidInput:  # there is nothing yet to go on with; if there is, the next line refuses to overwrite it
        how = resumable.settings(rule, scenario, room, arrivals)
        run = simulate(tasks.build(resumable.TASK), **how, out=where, checkpoint=EVERY)
    loaded = acefl.load(where)
    assert torch.equal(loaded.model, run.model)
    assert not (where / CHECKPOINT).exists()
    (room / "fingerprint.json").write_text(json.dumps(resumable.fingerprint(run)))


def never_killed(rule: str, scenario: str, room: Path, arrivals: int = ARRIVALS) -> None:
    """The run without checkpoints."""
    run = simulate(tasks.build(resumable.TASK), **resumable.settings(rule, scenario, room, arrivals))
    (room / "fingerprint.json").write_text(json.dumps(resumable.fingerprint(run)))


def outcome(room: Path) -> Any:
    return json.loads((room / "fingerprint.json").read_text())


def kill_often(kills: int, seed: int) -> dict[str, Any]:
    """Go through rules and scenarios until so many lives have ended in SIGKILL."""
    draw = random.Random(seed)
    killed, runs, resumed_at, different = 0, 0, [], []
    cases = _cases(draw)
    seen: set[tuple[str, str]] = set()
    began = time.perf_counter()
    while killed < kills:
        rule, scenario = next(cases)
        room = Path(tempfile.mkdtemp(prefix="acefl-kill-"))
        try:
            started = time.perf_counter()
            if ended(in_a_child(never_killed, rule, scenario, room)):
                raise SystemExit(f"{rule}, {scenario}: the run failed without being killed")
            lasts = LONGER * (time.perf_counter() - started)
            expected = outcome(room)
            (room / "fingerprint.json").unlink()
            lives = 0
            while True:
                child = in_a_child(live, rule, scenario, room)
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
            "no checkpoint": kills - len(resumed_at),
            "0": resumed_at.count(0),
            **{f"up to {25 * k}": sum(25 * k - 25 < at <= 25 * k for at in resumed_at) for k in (1, 2, 3, 4)},
        },
        "seed": seed,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _cases(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Every rule once, in random order, then every rule once with its next scenario, and so on without end."""
    rules, scenarios = list(resumable.RULES), list(resumable.SCENARIOS)
    for turn in itertools.count():
        draw.shuffle(rules)
        for rule in rules:
            yield rule, scenarios[(list(resumable.RULES).index(rule) + turn) % len(scenarios)]


def kill_before_every_change_of_a_file(rule: str, scenario: str, arrivals: int) -> dict[str, Any]:
    """For each change of a file that a run makes, from claiming its directory to the end: kill it just before that."""
    different, changes = [], 0
    room = Path(tempfile.mkdtemp(prefix="acefl-kill-"))
    try:
        ended(in_a_child(never_killed, rule, scenario, room, arrivals))
        expected = outcome(room)
        while True:
            shutil.rmtree(room / "run", ignore_errors=True)
            (room / "fingerprint.json").unlink()
            code = ended(in_a_child(live, rule, scenario, room, arrivals, changes))
            if code == -signal.SIGKILL:
                changes += 1
                code = ended(in_a_child(live, rule, scenario, room, arrivals))
                killed = True
            else:
                killed = False
            if code or outcome(room) != expected:
                different.append(changes)
            if not killed:
                return {"kills": changes, "different": different}
    finally:
        shutil.rmtree(room, ignore_errors=True)


def die_before_change(number: int) -> None:
    """Have the interpreter's audit hook kill this process before its so many-th change of a file."""
    changes = itertools.count()

    def hear(event: str, details: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in CHANGES) and next(changes) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def tell(found: dict[str, Any], script: str) -> None:
    """Print what a script found as JSON, with the command that finds it again, the day and the machine."""
    how = {
        "command": shlex.join(["python", "-m", script, *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": record.machine(),
    }
    print(json.dumps({**found, **how}, indent=2))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments.add_argument("--every-change", nargs=2, metavar=("RULE", "SCENARIO"))
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    if asked.every_change:
        content = kill_before_every_change_of_a_file(*asked.every_change, arrivals=25)
    else:
        content = kill_often(asked.kills, asked.seed)
    tell(content, "tests.killing")
    sys.exit(bool(content["different"]))


if __name__ == "__main__":
    main()
