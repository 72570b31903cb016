"""Is `acefl plan` right? Its bytes and times against those of a federation's server that really has the clients.

`python -m benchmarks.plan`; each server is a process of its own, so that what it takes of memory is its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from acefl import ACE
from acefl.forecast import forecast
from acefl.server import Server
from acefl.types import Arrival
from benchmarks.common import report

CASES: tuple[tuple[int, int, str, str], ...] = (  # parameters, clients, encoding, home
    (11_200_000, 200, "int8", "memory"),
    (11_200_000, 50, "fp32", "memory"),
    (1_200_000, 1_000, "int8", "memory"),
    (1_200_000, 1_000, "int4", "memory"),
    (1_200_000, 1_000, "int8", "file"),
    (50_000, 2_000, "fp32", "memory"),
)
TIMED = 300  # arrivals, after everybody has arrived once


def resident() -> int:
    """Bytes of this process that are in memory and its own, mapped files left out."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def measure(params: int, clients: int, table: str, home: str) -> dict[str, float]:
    """A server with all its clients: seconds per arrival, and how many bytes their rows added."""
    model, updates = torch.zeros(params), [torch.randn(params) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "table"
        rule = ACE(table=table, home=place if home == "file" else home, warmup="seen").build(clients, model)
        server = Server(model, rule, lr=1e-6, clients=clients)

        def arrive(task: int) -> float:
            arrival = Arrival(task % clients, updates[task % 2], server.version, server.version, task)
            began = time.perf_counter()
            server.handle([arrival])
            return time.perf_counter() - began

        arrive(0)  # compiles
        before, first = resident(), 1
        for task in range(first, clients):
            arrive(task)
        rows = resident() - before if home != "file" else place.stat().st_blocks * 512
        share = clients / (clients - first) if home != "file" else 1.0
        seconds = [arrive(clients + task) for task in range(TIMED)]
    return {"seconds": statistics.median(seconds), "table": rows * share}


def main() -> None:
    rows: list[dict[str, Any]] = []
    for params, clients, table, home in CASES:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "table" if home == "file" else home
            plan = forecast(params, clients, table=table, home=place)
        case = json.dumps([params, clients, table, home])
        command = [sys.executable, "-m", "benchmarks.plan", case]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append(
            {
                "server": f"d = {params:,}, n = {clients:,}, {table}, {home}",
                "planned_MB": plan.table_bytes / 1e6,
                "measured_MB": found["table"] / 1e6,
                "bytes_ratio": plan.table_bytes / found["table"],
                "planned_ms": plan.seconds * 1e3,
                "measured_ms": found["seconds"] * 1e3,
                "time_ratio": plan.seconds / found["seconds"],
            }
        )
    targets = []
    for column, what in (("bytes_ratio", "bytes"), ("time_ratio", "time per arrival")):
        off = max(abs(row[column] - 1.0) for row in rows)
        targets.append(
            {"what": f"plan's {what}, farthest off", "measured": off, "asked": "<= 0.15", "met": off <= 0.15}
        )
    report("plan", "Is `acefl plan` right?", rows, targets)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    else:
        main()
