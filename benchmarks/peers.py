"""Arrivals per second of other simulators on the same work, in one run: `python -m benchmarks.peers --setup`, then
without `--setup`.

The work: digits, MLP 64-64-10, 100 clients, one minibatch of 50 per task, the slowest client 30 times slower than the
fastest, evaluation every 200 arrivals, one thread, 2,000 arrivals (fewer where a peer would take minutes, and for acefl
once more 200,000, for which it compiles; the table says how many). Every system gets the same rows: clients with fewer
than 50 have some of theirs repeated. Each turn is a process of its own, with a warm-up that is not timed; building a
peer's server and clients is not timed either. Turns of all systems are interleaved.

Peers live in environments of their own, under `--cache`. One that cannot be installed or run is reported and left out.
What was switched off in each, always in its favour, is said at the top of its driver in `benchmarks/peer_drivers`.
Speed is compared, not methods: learning rates are not tuned, and the accuracy only shows that a model was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acefl import tasks
from benchmarks.common import report

DRIVERS = Path(__file__).parent / "peer_drivers"
ARRIVALS, CLIENTS, BATCH = 2_000, 100, 50
TORCH = "torch==2.13.0"  # accepts a CPU-only build where pip knows of one
OURS, OURS_LONG, LONG = "acefl: ", "acefl, long: ", 200_000
METHODS = ("ASGD", "FedBuff", "ACE")
BARE = "plain torch: gradients alone"


@dataclass(frozen=True)
class Environment:
    """What pip installs: `packages` with what they need; `bare` without, where a simulation uses little of it."""

    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()


ENVIRONMENTS = {
    "appfl": Environment(
        (TORCH, "scikit-learn", "omegaconf", "colorama", "wandb", "pandas", "matplotlib", "seaborn", "requests"),
        ("appfl==1.12.0", "opacus==1.6.0"),
    ),
    "flgo": Environment((TORCH, "torchvision==0.28.0", "setuptools", "flgo==0.4.4")),
    "pfl": Environment((TORCH, "pfl[pytorch]==0.6.0")),
}


@dataclass
class System:
    """One row: a driver's method in an environment (none: this one)."""

    name: str
    driver: str
    method: str
    environment: str | None = None
    asynchronous_peer: bool = False
    arrivals: int = ARRIVALS
    turns: list[dict[str, float]] = field(default_factory=list)
    failure: str = ""

    def row(self, bare: float | None) -> dict[str, Any]:
        speed = self.speed()
        return {
            "system": self.name,
            "arrivals/s": speed if speed is not None else f"failed: {self.failure}",
            "of the gradients alone": speed / bare if speed and bare else "",
            "timed arrivals": int(self.turns[0]["arrivals"]) if self.turns else "",
            "accuracy": self.turns[0]["accuracy"] if self.turns else "",
            "CPU seconds per second": self._busy(),
        }

    def speed(self) -> float | None:
        return statistics.median(t["arrivals"] / t["seconds"] for t in self.turns) if self.turns else None

    def _busy(self) -> float | str:
        return min(t["cpu_seconds"] / t["seconds"] for t in self.turns) if self.turns else ""


def systems() -> list[System]:
    return [
        System(BARE, "plain_torch.py", "gradients"),
        System("plain torch: ASGD in an event loop by hand", "plain_torch.py", "events"),
        *(System(f"{OURS}{method}", "acefl_simulate.py", method) for method in METHODS),
        *(System(f"{OURS_LONG}{method}", "acefl_simulate.py", method, arrivals=LONG) for method in METHODS),
        System("APPFL 1.12 without gc.collect: FedAsync", "appfl_vsim.py", "FedAsync", "appfl", True),
        System("APPFL 1.12 without gc.collect: FedBuff", "appfl_vsim.py", "FedBuff", "appfl", True),
        System("APPFL 1.12 as shipped: FedAsync", "appfl_vsim.py", "FedAsync as shipped", "appfl", True, 10),
        System("FLGo 0.4.4: FedAsync", "flgo_async.py", "FedAsync", "flgo", True),
        System("FLGo 0.4.4: FedBuff", "flgo_async.py", "FedBuff", "flgo", True),
        System("pfl 0.6, synchronous", "pfl_sync.py", "FedAvg", "pfl"),
        System("Flower's simulation engine, synchronous", "flower_simulation.py", "FedAvg", None, False, 500),
    ]


def set_up(cache: Path) -> None:
    for name, environment in ENVIRONMENTS.items():
        place = cache / name
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        commands = [[sys.executable, "-m", "venv", "--clear", str(place)], [*pip, *environment.packages]]
        if environment.bare:
            commands.append([*pip, "--no-deps", *environment.bare])
        print(f"{name}: installing into {place} ...", flush=True)
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: not installed: {last_line(done.stderr)}", flush=True)
                break


def save_digits(path: Path) -> None:
    """Rows of every client one after another, how many each has, and the test set."""
    task = tasks.digits(clients=CLIENTS, model="mlp", batch=BATCH)
    chance = np.random.default_rng(0)
    rows = []
    for first, count in zip(task._data.offsets.tolist(), task.samples, strict=True):
        own = np.arange(first, first + count)
        rows.append(np.concatenate([own, chance.choice(own, max(0, BATCH - count))]))
    assert task._test is not None
    chosen = np.concatenate(rows)
    np.savez(
        path,
        train_x=task._data.inputs.numpy()[chosen],
        train_y=task._data.targets.numpy()[chosen],
        counts=[len(own) for own in rows],
        test_x=task._test.inputs.numpy(),
        test_y=task._test.targets.numpy(),
    )


def turn(system: System, data: Path, cache: Path, scratch: Path, limit: float) -> None:
    """One process; after a failure the system is not tried again."""
    if system.failure:
        return
    python = Path(sys.executable) if system.environment is None else cache / system.environment / "bin" / "python"
    if not python.exists():
        system.failure = "not installed (--setup installs it)"
        return
    command = [str(python), str(DRIVERS / system.driver), str(data), system.method, str(system.arrivals)]
    quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "WANDB_MODE": "disabled"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=scratch, env={**os.environ, **quiet}, timeout=limit
        )
    except subprocess.TimeoutExpired:
        system.failure = f"no answer within {limit:.0f} s"
        return
    if done.returncode:
        system.failure = last_line(done.stderr)
    else:
        system.turns.append(json.loads(last_line(done.stdout)))


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "acefl" / "peers"
    options.add_argument("--cache", type=Path, default=home, help="folder of the peers' environments (%(default)s)")
    options.add_argument("--setup", action="store_true", help="make these environments and stop")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", default="", help="systems with this text in their name")
    options.add_argument("--limit", type=float, default=600.0, help="seconds for one turn of one system")
    given = options.parse_args()
    cache = given.cache.absolute()
    if given.setup:
        set_up(cache)
        return
    measured = [system for system in systems() if given.only in system.name]
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "digits.npz"
        save_digits(data)
        for number in range(given.repeats):
            for system in measured:
                print(f"turn {number + 1} of {given.repeats}: {system.name}", file=sys.stderr, flush=True)
                turn(system, data, cache, Path(scratch), given.limit)
    bare = next((system.speed() for system in measured if system.name == BARE), None)
    report("peers", __doc__ or "", [system.row(bare) for system in measured], targets(measured))


def targets(measured: list[System]) -> list[dict[str, Any]]:
    peers = {s.name: s.speed() for s in measured if s.asynchronous_peer}
    known = {name: speed for name, speed in peers.items() if speed is not None}
    found: list[dict[str, Any]] = []
    for ours, which, asked in ((OURS, "our slowest method", 10), (OURS_LONG, "the same in a long run", 40)):
        speeds = [speed for s in measured if s.name.startswith(ours) and (speed := s.speed()) is not None]
        if known and len(speeds) == len(METHODS):
            fastest = max(known, key=lambda name: known[name])
            times = min(speeds) / known[fastest]
            what = f"{which}, times the fastest asynchronous peer ({fastest})"
            found.append({"what": what, "measured": times, "asked": f">= {asked}", "met": times >= asked})
    return found


if __name__ == "__main__":
    main()
