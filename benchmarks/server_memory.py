"""What the table costs: an arrival against a plain copy of a vector, bytes per client, ten thousand clients in a file.

`python -m benchmarks.server_memory [FOLDER]`; FOLDER (default: the temporary folder) needs 13 GB for the file.
Two threads. The machine should be quiet: a busy core makes two-thread ratios meaningless.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from acefl.core import kernels
from acefl.core.kernels import cpu, loops
from acefl.core.kernels.layout import ENCODINGS, Layout
from acefl.table import Accumulator, Table
from benchmarks.common import median_ratio, report

DIM, TURNS, ROWS = 11_200_000, 21, 3
COPIED = 8  # bytes per number that a copy reads and writes
FILE_DIM, FEW, MANY = 1_200_000, 100, 10_000


@numba.njit(nogil=True, boundscheck=False)
def float32_pass(row, new, total, model, scale, rate, bites):  # type: ignore[no-untyped-def]
    """The same pass with a sum that drifts, to see what not drifting costs."""
    while True:
        begin = loops.take(bites) * loops.BITE * 512  # type: ignore[call-arg]
        if begin >= new.size:
            return
        for start in range(begin, min(begin + loops.BITE * 512, new.size), 512):
            r, x = row[start : start + 512], new[start : start + 512]
            t, m = total[start : start + 512], model[start : start + 512]
            for i in range(x.size):
                t[i] += scale * (x[i] - r[i])
            for i in range(x.size):
                r[i] = x[i]
            for i in range(x.size):
                m[i] -= rate * t[i]


def rested(jobs: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of each job, in turns, each after a pause: torch's threads spin for milliseconds after their work."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            time.sleep(0.01)
            began = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def figure(what: str, value: float, unit: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit}


def moved(encoding: str) -> float:
    """Bytes per parameter of an arrival: the update is read; the row, the sum and the model are read and written."""
    return 4 + 2 * (Layout(encoding, DIM).row_bytes / DIM + 4 + 4)


def arrivals() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """One ACE arrival with the model's step, as a multiple of one torch copy of a vector."""
    torch.set_num_threads(2)
    source, target, model = torch.randn(DIM), torch.zeros(DIM), torch.zeros(DIM)
    updates = [torch.randn(DIM) for _ in range(2)]
    visits = iter(range(10**9))
    jobs: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}

    def arrival(table: Table, total: Accumulator) -> Callable[[], None]:
        def job() -> None:
            visit = next(visits)
            table.exchange_and_step(visit % ROWS, updates[visit % 2], total, 1.0, model, 1e-3)

        return job

    for encoding in ENCODINGS:
        table, total = Table(ROWS, model, encoding=encoding), Accumulator(model)
        for client in range(ROWS):
            table.exchange(client, updates[0], total, 1.0)
        jobs[encoding] = arrival(table, total)
    plain = [np.zeros(DIM, np.float32) for _ in range(2)]

    def with_float32_sum() -> None:
        new = updates[next(visits) % 2].numpy()
        scales = np.float32(0.01), np.float32(1e-3)
        cpu._share(float32_pass, DIM // 512, plain[0], new, plain[1], model.numpy(), *scales)

    row, mean = torch.zeros(DIM), torch.zeros(DIM)

    def careful_torch() -> None:
        new = updates[next(visits) % 2]
        mean.add_(new, alpha=0.01).sub_(row, alpha=0.01)
        row.copy_(new)
        model.sub_(mean, alpha=1e-3)

    jobs["fp32, a float32 sum that drifts"] = with_float32_sum
    jobs["fp32, in-place torch"] = careful_torch
    seconds = rested(jobs, TURNS)
    rows, best = [], {}
    for name, times in seconds.items():
        best[name] = min(times) / min(seconds["copy"])
        rows.append(figure(f"{name}, d = 11.2M, best", 1e3 * min(times), "ms"))
        if name != "copy":
            rows.append(figure(f"{name}, best against best", best[name], "copies"))
            rows.append(figure(f"{name}, median of turns", median_ratio(times, seconds["copy"]), "copies"))
        if name in ENCODINGS:
            rows.append(figure(f"{name}, bytes read and written", moved(name) / COPIED, "copies"))
    return rows, best


def short_vectors() -> list[dict[str, Any]]:
    """Microseconds per exchange where the fixed cost of a call is all there is."""
    torch.set_num_threads(1)
    rows = []
    for dim in (650, 5_000):
        for encoding in ENCODINGS:
            like, new = torch.zeros(dim), torch.randn(dim)
            table, total = Table(2, like, encoding=encoding), Accumulator(like)
            times = []
            for _ in range(100):
                began = time.perf_counter()
                for _ in range(20):
                    table.exchange(0, new, total, 1.0)
                times.append((time.perf_counter() - began) / 20)
            rows.append(figure(f"{encoding} exchange, d = {dim:,}, best", 1e6 * min(times), "us"))
    return rows


def drift(exchanges: int = 100_000, clients: int = 100) -> list[dict[str, Any]]:
    """How far a running sum of the shortest long vectors is from the sum of the table, relative to its norm."""
    dim, rows = kernels.LONG, []
    pool = torch.randn(32, dim)
    for encoding in ENCODINGS:
        table, total = Table(clients, pool[0], encoding=encoding), Accumulator(pool[0])
        began = time.perf_counter()
        for visit in range(exchanges):
            table.exchange(visit * 7919 % clients, pool[visit * 104729 % 32], total, 1 / clients)
        took = time.perf_counter() - began
        mean = table.total() / clients
        error = float((total.value.double() - mean).norm() / mean.norm())
        rows.append(figure(f"{encoding} drift after {exchanges:,} exchanges, d = {dim:,}", error, "relative"))
        rows.append(figure(f"{encoding} exchange, d = {dim:,}, mean of these", 1e6 * took / exchanges, "us"))
    return rows


def many_clients(folder: str) -> dict[str, tuple[float, str]]:
    """A full table of 10,000 rows and one of 100, both in files: arrivals in turn."""
    torch.set_num_threads(2)
    model, updates = torch.zeros(FILE_DIM), [torch.randn(FILE_DIM) for _ in range(4)]
    tables = {n: Table(n, model, encoding="int8", home=Path(folder) / f"table-{n}") for n in (FEW, MANY)}
    sums = {n: Accumulator(model) for n in tables}
    found: dict[str, tuple[float, str]] = {}
    for n, table in tables.items():
        began = time.perf_counter()
        for client in range(n):
            table.exchange_and_step(client, updates[client % 4], sums[n], 1.0, model, 1e-6)
        found[f"first arrivals, n = {n:,}, mean"] = 1e3 * (time.perf_counter() - began) / n, "ms"
    os.sync()  # else the figures below are the disk's, still busy with what was written above
    clients = {n: np.random.default_rng(0).integers(0, n, 400).tolist() for n in tables}

    def job(n: int) -> Callable[[], None]:
        def arrive() -> None:
            tables[n].exchange_and_step(clients[n].pop(), updates[0], sums[n], 1.0, model, 1e-6)

        return arrive

    seconds = rested({str(n): job(n) for n in tables}, 300)
    medians = {n: statistics.median(seconds[str(n)]) for n in tables}
    for n, median in medians.items():
        found[f"arrival, n = {n:,}, median"] = 1e3 * median, "ms"
    found["arrival, n = 10,000 against 100"] = medians[MANY] / medians[FEW], "times"
    found["peak resident memory"] = peak() / 1e9, "GB"
    return found


def peak() -> int:
    """The most bytes this process ever had in memory; getrusage would tell its parent's, if that had more."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def in_a_process(folder: str) -> dict[str, tuple[float, str]]:
    """The same in a process of its own, whose resident memory is that of the tables and of torch."""
    needed = 1.05 * FILE_DIM * (MANY + FEW)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if shutil.disk_usage(scratch).free < 1.2 * needed:
            print(f"skipped: ten thousand clients need {needed / 1e9:.0f} GB free in {scratch}", file=sys.stderr)
            return {}
        command = [sys.executable, "-m", "benchmarks.server_memory", "--child", scratch]
        found: dict[str, tuple[float, str]] = json.loads(
            subprocess.run(command, check=True, capture_output=True).stdout
        )
        return found


def main(folder: str | None = None) -> None:
    load = os.getloadavg()[0]
    rows, ratio = arrivals()
    short, drifts = short_vectors(), drift()
    clients = in_a_process(folder or tempfile.gettempdir())
    sizes = [
        figure(f"{name}, d = 11.2M", Layout(name, DIM).row_bytes / DIM, "bytes/parameter/client") for name in ENCODINGS
    ]
    rows += (
        sizes
        + short
        + drifts
        + [figure(f"int8 in a file, d = 1.2M: {what}", *found) for what, found in clients.items()]
    )
    rows += [figure("load before", load, "processes"), figure("load after", os.getloadavg()[0], "processes")]
    targets: list[tuple[str, float, float]] = [
        ("fp32 arrival, of a copy", ratio["fp32"], 2.5),
        ("int8 arrival, of a copy", ratio["int8"], 2.0),
        ("int8 bytes per parameter and client", Layout("int8", DIM).row_bytes / DIM, 1.05),
        ("drift after 100,000 exchanges", max(row["value"] for row in drifts if row["unit"] == "relative"), 1e-6),
        ("microseconds of a short fp32 exchange", max(row["value"] for row in short if "fp32" in row["what"]), 15.0),
    ]
    if clients:
        targets += [
            ("n = 10,000 in a file: peak resident GB", clients["peak resident memory"][0], 1.0),
            ("n = 10,000 in a file: arrival against n = 100", clients["arrival, n = 10,000 against 100"][0], 1.5),
        ]
    verdicts = [
        {"what": what, "measured": got, "asked": f"<= {asked:g}", "met": got <= asked} for what, got, asked in targets
    ]
    report("server_memory", "The server's memory", rows, verdicts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(many_clients(sys.argv[2])))
    else:
        main(*sys.argv[1:])
