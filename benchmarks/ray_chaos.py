"""Chaos on Ray: actors, a worker node and the driver killed at random moments; then the books.

`python -m benchmarks.ray_chaos --minutes 3`. A cluster of two nodes on this machine: the head, and a worker that dies
and comes back. Processes of actors, the worker node's raylet and the driver are killed by SIGKILL. The driver is
started again by the same command, and resumes from its checkpoint. In the end the model must be, bit for bit, the
replay of its record.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from acefl import Every, Stop, load, rules
from acefl.fleets.flower.loopback import free_port, processes_with
from acefl.runs.live_log import JsonLines
from acefl.runs.on_ray import run_on_ray
from acefl.tasks.sources import build_task
from benchmarks.chaos import LOST, books, by_fifths, checkpoints_lost, resident, targets
from benchmarks.common import report

SOURCE = {"name": "quadratic", "clients": 12, "dim": 100, "noise": 0.5}
SEED, ACTORS = 3, 3
METHOD = "ACED(tau=30, warmup='seen')"
PAUSE = (0.5, 3.0)  # seconds between two faults
CALM = 15.0  # seconds at work that a driver gets: to start takes it longer
LIMIT = 600.0  # seconds beyond the asked ones after which something is stuck
KINDS = {"actor killed": 6, "worker node killed": 2, "driver killed": 3}  # by how often
MARK = "ACEFL_RAY_CHAOS"


class Cluster:
    """A head and a worker node on this machine, on 127.0.0.1; their processes end with it, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = f"{MARK}={folder}"
        self._environment = {
            **os.environ, MARK: str(folder), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }  # fmt: skip
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        self._temporary = tempfile.TemporaryDirectory(prefix="ray-")  # of its own: Ray leaves there where to find it
        head = ("--head", "--port", port, "--num-cpus", "1", "--include-dashboard", "false")
        self.start((*head, "--temp-dir", self._temporary.name))
        self.start_worker()

    def start(self, arguments: tuple[str, ...]) -> None:
        ray = str(Path(sys.executable).parent / "ray")
        done = subprocess.run(
            [ray, "start", "--node-ip-address", "127.0.0.1", "--disable-usage-stats", *arguments],
            env=self._environment, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"ray start failed:\n{done.stdout}{done.stderr}")

    def start_worker(self) -> None:
        self.start(("--address", self.address, "--num-cpus", str(ACTORS - 1)))

    def driver(self, out: Path, lines: Path, method: str, seconds: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.ray_chaos", "--driver", self.address, str(out), str(lines)]
        with (self._folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--method", method, "--minutes", str(seconds / 60)],
                env=self._environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def processes(self, title: str, without: str = "\n") -> list[int]:
        """Ours whose command line has this in it, and not the other."""
        found = []
        for process in processes_with(self._mark):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
                if title in line and without not in line:
                    found.append(process)
        return found

    def close(self) -> None:
        for _ in range(3):  # what is started while others are killed
            for process in processes_with(self._mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.5)
        self._temporary.cleanup()


class Chaos:
    """One run, and what is done to it."""

    def __init__(self, cluster: Cluster, folder: Path, method: str, seconds: float, seed: int) -> None:
        self.cluster, self.method, self.seconds = cluster, method, seconds
        self.out, self.lines = folder / "out", folder / "out.jsonl"
        self.random, self.faults, self.memory = random.Random(seed), Counter[str](), list[float]()
        self.by_itself = 0
        self._start()

    def _start(self) -> None:
        self.driver = self.cluster.driver(self.out, self.lines, self.method, self.seconds)
        self._driver_started, self._at_work_since = time.time(), 0.0

    def strike(self) -> None:
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "driver killed":
            if time.time() - self._at_work_since < CALM:
                return
            self.driver.kill()
            self.driver.wait()
            self._start()
        else:
            node = kind.startswith("worker")
            victims = self.cluster.processes("/raylet ", "--head") if node else self.cluster.processes("ray::_Worker")
            if not victims:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(victims), signal.SIGKILL)
            if node:
                self.cluster.start_worker()
        self.faults[kind] += 1
        print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)

    def _is_at_work(self) -> bool:
        """Whether this driver has left a checkpoint."""
        if not self._at_work_since and self.lines.exists() and self.lines.stat().st_mtime > self._driver_started:
            self._at_work_since = time.time()
        return self._at_work_since > 0

    def to_the_end(self) -> None:
        until = time.monotonic() + self.seconds + LIMIT
        while not (self.out / "summary.json").exists():
            if time.monotonic() > until:
                raise SystemExit("stuck")
            time.sleep(self.random.uniform(*PAUSE))
            self.memory.append(resident([self.driver.pid]))
            if self.driver.poll() is not None and not (self.out / "summary.json").exists():
                self.by_itself += 1
                self._start()
            if self._is_at_work():
                self.strike()
        self.driver.wait(60)


def chaos(folder: Path, minutes: float, seed: int, method: str = METHOD) -> dict[str, Any]:
    """One run's life, and what its books say."""
    cluster = Cluster(folder)
    try:
        life = Chaos(cluster, folder, method, 60 * minutes, seed)
        life.to_the_end()
    finally:
        cluster.close()
    made = load(life.out)
    task = build_task(SOURCE, SEED)
    task.batch_limit = 1  # as the actors: a product of several matrices at once may round otherwise
    return {
        "method": method,
        "minutes": minutes,
        "faults": sum(life.faults.values()),
        "of these": dict(life.faults),
        "drivers that ended by themselves and were started again": life.by_itself,
        "ended early": made.config.get("ended", ""),
        **books(made, rules.parse(method), task),
        LOST: checkpoints_lost(life.lines),
        "memory of the driver by fifths, MB": by_fifths(life.memory),
    }


def drive(address: str, out: str, lines: str, method: str, seconds: float) -> None:
    """What the driver does: the same call, whether the run begins or is resumed."""
    run_on_ray(
        SOURCE, rules.parse(method), lr=0.05, stop=Stop(time=seconds), seed=SEED, actors=ACTORS, address=address,
        evaluations=1, out=out, checkpoint=Every(arrivals=200), observers=[JsonLines(lines)], progress=False,
    )  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=3.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--method", default=METHOD)
    options.add_argument("--driver", nargs=3, metavar=("ADDRESS", "OUT", "LINES"), help="be the driver of a run")
    given = options.parse_args()
    if given.driver:
        drive(*given.driver, given.method, 60 * given.minutes)
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = [chaos(Path(scratch), given.minutes, given.seed, given.method)]
    report("ray_chaos", "Chaos on Ray", rows, targets(rows, 1))


if __name__ == "__main__":
    main()
