"""Is `acefl plan` right? Its bytes and times against those of a federation's server that really has the clients.

`python -m benchmarks.plan`; each server is a process of its own, so that what it takes of memory is its own.
"""

from __future__ import annotations

import itertools
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
from acefl.core.server import Server
from acefl.core.types import Arrival
from acefl.studies.plan import forecast
from benchmarks.common import median_ratio, report

CASES: tuple[tuple[int, int, str, str], ...] = (  # parameters, clients, encoding, home
    (11_200_000, 200, "int8", "memory"),
    (11_200_000, 50, "fp32", "memory"),
    (1_200_000, 1_000, "int8", "memory"),
    (1_200_000, 1_000, "int4", "memory"),
    (1_200_000, 1_000, "int8", "file"),
    (50_000, 2_000, "fp32", "memory"),
)
ROUNDS, TIMED = 5, 100  # a plan and so many arrivals in turn, so that a machine's mood hits both


def resident() -> int:
    """Bytes of this process that are in memory and its own, mapped files left out."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def measure(params: int, clients: int, table: str, home: str) -> dict[str, float]:
    """A server with all its clients, and plans of it in between: seconds per arrival, bytes that its rows added."""
    model, updates = torch.zeros(params), [torch.randn(params) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "table"
        rule = ACE(table=table, home=place if home == "file" else home, warmup="seen").build(clients, model)
        server = Server(model, rule, lr=1e-6, clients=clients)
        tasks = itertools.count()

        def arrive() -> float:
            task = next(tasks)
            arrival = Arrival(task % clients, updates[task % 2], server.version, server.version, task)
            began = time.perf_counter()
            server.handle([arrival])
            return time.perf_counter() - began

        arrive()  # compiles
        before = resident()
        for _ in range(1, clients):
            arrive()
        rows = place.stat().st_blocks * 512 if home == "file" else (resident() - before) * clients / (clients - 1)
        planned, measured = [], []
        for _ in range(ROUNDS):
            plan = forecast(params, clients, table=table, home=Path(folder) / "plan" if home == "file" else home)
            planned.append(plan.seconds)
            measured.append(statistics.median(arrive() for _ in range(TIMED)))
    return {
        "planned_MB": plan.table_bytes / 1e6,
        "measured_MB": rows / 1e6,
        "bytes_ratio": plan.table_bytes / rows,
        "planned_ms": 1e3 * statistics.median(planned),
        "measured_ms": 1e3 * statistics.median(measured),
        "time_ratio": median_ratio(planned, measured),
    }


def main() -> None:
    rows: list[dict[str, Any]] = []
    for params, clients, table, home in CASES:
        command = [sys.executable, "-m", "benchmarks.plan", json.dumps([params, clients, table, home])]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append({"server": f"d = {params:,}, n = {clients:,}, {table}, {home}", **found})
    cached = [row for row in rows if row["server"].endswith("memory")]
    on_disk = [row for row in rows if row["server"].endswith("file")]
    targets = []
    for what, column, some in (
        ("bytes", "bytes_ratio", rows),
        ("time per arrival, in memory", "time_ratio", cached),
        ("time per arrival, in a file", "time_ratio", on_disk),
    ):
        off = max(abs(row[column] - 1.0) for row in some)
        targets.append({"what": f"plan's {what}: off by", "measured": off, "asked": "<= 0.15", "met": off <= 0.15})
    report("plan", "Is `acefl plan` right?", rows, targets)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    else:
        main()
