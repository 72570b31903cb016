"""The table on a GPU: Triton's kernels against the reference, bit for bit, and against the memory floor.

Needs torch, triton and numpy only: PYTHONPATH=src python3 benchmarks/gpu_table.py [JSON]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from acefl.core import kernels
from acefl.core.kernels import gpu
from acefl.core.kernels.layout import ENCODINGS, GROUP, LOWEST, Key, Layout, Row, Sum, Tape, native
from acefl.core.kernels.reference import Reference
from acefl.core.kernels.reference import read as read_with_numpy
from acefl.table import Accumulator, Table

DIM, ROWS, TURNS = 11_200_000, 8, 30
ACCESSES = 28  # bytes per parameter of an fp32 arrival: read update; read and write row, sum and model


def parts(kind: str, dim: int) -> list[torch.Tensor | None]:
    """Total, value and exponents of an empty sum."""
    if kind == "plain":
        return [torch.zeros(dim), None, None]
    if kind == "wide":
        return [torch.zeros(dim, dtype=torch.float64), torch.zeros(dim), None]
    return [
        torch.zeros(dim, dtype=torch.int32),
        None,
        torch.full((-(-dim // GROUP),), LOWEST, dtype=torch.int32),
    ]


def outcome(kernel: Reference, kind: str, device: str) -> list[torch.Tensor]:
    """What a run of exchanges, steps and additions leaves behind."""
    layout, dim = kernel.layout, kernel.layout.dim
    generator = torch.Generator().manual_seed(dim)
    row = Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8, device=device), layout)
    places = [None if part is None else part.to(device) for part in parts(kind, dim)]
    sums, model = Sum(*(None if part is None else native(part) for part in places)), torch.ones(dim, device=device)
    for visit, size in enumerate(torch.randn(6, generator=generator).tolist()):
        new = torch.randn(dim, generator=generator) * 10.0 ** (2 * size)
        new[torch.rand(dim, generator=generator) < 0.1] = 0.0
        new[dim // 3 : dim // 3 + 40] = 1e-38
        key = Key.of(7, 3, visit)
        if visit % 2 and kind != "plain":
            kernel.exchange_and_step(row, new.to(device), sums, 0.3, key, model, 0.01)
        else:
            kernel.exchange(row, new.to(device), sums, -1.7, key)
    kernel.add(row, sums, 0.7)
    left = [row.raw, model, kernel.decode(row), *(place for place in places if place is not None)]
    if kind == "integers":
        left.append(torch.empty(dim, device=device))
        (read_with_numpy if device == "cpu" else gpu.read)(sums, left[-1])
    return [tensor.cpu() for tensor in left]


def played(kernel: Reference, device: str) -> list[torch.Tensor]:
    """What a tape of exchanges, steps and additions leaves behind."""
    layout, dim = kernel.layout, kernel.layout.dim
    generator = torch.Generator().manual_seed(dim)
    rows = [Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8, device=device), layout) for _ in range(3)]
    places = [part.to(device) for part in parts("wide", dim) if part is not None]
    model, models, tape = torch.ones(dim, device=device), torch.zeros(41, dim, device=device), Tape()
    for visit in range(40):
        new = torch.randn(dim, generator=generator) * 10.0 ** (visit % 5 - 2)
        client = visit // 2 % 3  # twice in a row
        tape.exchange(rows[client], new.to(device), 0.3, Key.of(7, client, visit))
        tape.step(0.01, 1.0 if visit % 2 else 0.7)
        if visit % 7 == 3:
            tape.add(rows[client], -0.3)
        if visit == 20:
            tape.zero()
    tape.add(rows[0], 0.3)
    tape.step(0.013, 1.0)
    kernel.play(tape, Sum(*map(native, places)), model, models)
    return [tensor.cpu() for tensor in (*(row.raw for row in rows), model, models, *places)]


def check_tapes() -> list[str]:
    """Where a tape played by Triton and by the reference differ: nowhere."""
    wrong = []
    for encoding in ENCODINGS:
        for dim in (1, 700, 4 * GROUP, 4810, kernels.LONG - 1):
            layout = Layout(encoding, dim)
            ours, expected = played(gpu.Triton(layout), "cuda"), played(Reference(layout), "cpu")
            names = ["row 0", "row 1", "row 2", "model", "models", "total", "value"]
            for name, one, two in zip(names, ours, expected, strict=True):
                if not torch.equal(one, two):
                    wrong.append(f"tape, {encoding}, d = {dim}: {name} differs in {int((one != two).sum())} places")
    return wrong


def check() -> list[str]:
    """Where Triton and the reference differ: nowhere."""
    wrong = []
    for encoding in ENCODINGS:
        for kind in ("plain", "wide", "integers"):
            for dim in (1, 700, 4 * GROUP, 100_003):
                layout = Layout(encoding, dim)
                ours, expected = outcome(gpu.Triton(layout), kind, "cuda"), outcome(Reference(layout), kind, "cpu")
                names = ["row", "model", "decoded", "total", "value" if kind == "wide" else "exponents", "read"]
                for name, one, two in zip(names, ours, expected, strict=False):
                    if not torch.equal(one, two):
                        count = int((one != two).sum())
                        wrong.append(
                            f"{encoding}, {kind}, d = {dim}: {name} differs in {count} of {one.numel()} places"
                        )
    return wrong


def check_tables() -> list[str]:
    """A step in the same pass equals a step after it; every home gives the same rows and sums."""
    wrong, dim = [], kernels.LONG + 5
    for encoding in ENCODINGS:
        results = []
        with tempfile.TemporaryDirectory() as folder:
            for home in ("device", "memory", str(Path(folder) / "table")):
                for fused in (True, False):
                    model = torch.ones(dim, device="cuda")
                    table, total = Table(3, model, encoding=encoding, home=home), Accumulator(model)
                    for visit in range(6):
                        new = torch.randn(dim, generator=torch.Generator().manual_seed(visit)).cuda()
                        if fused:
                            table.exchange_and_step(visit % 3, new, total, 0.5, model, 0.013)
                        else:
                            table.exchange(visit % 3, new, total, 0.5)
                            model.sub_(total.value, alpha=0.013)
                    mean = 0.5 * table.total()
                    error = float((total.value.double() - mean).norm() / mean.norm())
                    if error > 1e-6:
                        wrong.append(f"{encoding}, {home}: the sum is {error:.1e} from the table's")
                    results.append((model, total.value.clone(), table.row(1)))
                    del table
        if not all(torch.equal(a, b) for one in results for a, b in zip(one, results[0], strict=True)):
            wrong.append(f"{encoding}: homes or fused and separate steps differ")
    return wrong


class Clock:
    """Microseconds on the device, from a cold cache, with the launch hidden behind the kernel that empties it."""

    def __init__(self) -> None:
        self._cold = torch.empty(1 << 27, device="cuda")

    def __call__(self, job: Callable[[], Any]) -> float:
        times = []
        for turn in range(TURNS + 3):
            self._cold.zero_()
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            job()
            ended.record()
            torch.cuda.synchronize()
            if turn >= 3:
                times.append(1e3 * began.elapsed_time(ended))
        return statistics.median(times)


def arrival(encoding: str, home: str = "device") -> Callable[[], None]:
    model = torch.zeros(DIM, device="cuda")
    updates = [torch.randn(DIM, device="cuda") for _ in range(4)]
    table, total = Table(ROWS, model, encoding=encoding, home=home), Accumulator(model)
    visits = iter(range(10**9))

    def job() -> None:
        visit = next(visits)
        table.exchange_and_step(visit % ROWS, updates[visit % 4], total, 1.0, model, 1e-4)

    for _ in range(ROWS):
        job()
    return job


def wall(job: Callable[[], None], times: int = 50) -> float:
    """Microseconds per call of many in a row, launches included."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        job()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - began) / times


def copies(clock: Clock) -> tuple[float, float]:
    """Bytes per microsecond of a large copy, and microseconds of the copy of a vector."""
    source, target = torch.randn(1 << 28, device="cuda"), torch.empty(1 << 28, device="cuda")
    bandwidth = 8 * (1 << 28) / clock(lambda: target.copy_(source))
    return bandwidth, clock(lambda: target[:DIM].copy_(source[:DIM]))


def measure() -> tuple[list[dict[str, Any]], float]:
    clock = Clock()
    bandwidth, short = copies(clock)
    rows = [{"what": "copy of 1 GiB", "us": 8 * (1 << 28) / bandwidth, "GB/s": bandwidth / 1e3}]
    rows.append({"what": "copy of a d-vector", "us": short, "GB/s": 8 * DIM / short / 1e3})
    chosen = gpu.WARPS
    for encoding in ENCODINGS:
        touched = ACCESSES - 8 + 2 * Layout(encoding, DIM).row_bytes / DIM
        floor = touched * DIM / bandwidth
        job = arrival(encoding)
        for warps in (chosen, *(w for w in (1, 2, 4, 8) if w != chosen)):
            gpu.WARPS = warps
            job()
            took = clock(job)
            rows.append(
                {
                    "what": f"{encoding} arrival, {warps} warps" + (" (in use)" if warps == chosen else ""),
                    "us": took,
                    "GB/s": touched * DIM / took / 1e3,
                    "floor, us": floor,
                    "of the floor": took / floor,
                    "us with launches": wall(job),
                }
            )
        gpu.WARPS = chosen
        job = arrival(encoding, home="memory")
        rows.append({"what": f"{encoding} arrival, table in host memory", "us with launches": wall(job, 10)})
        torch.cuda.empty_cache()
    model, mean, row, new = (torch.randn(DIM, device="cuda") for _ in range(4))

    def in_place() -> None:
        mean.add_(new, alpha=0.01).sub_(row, alpha=0.01)
        row.copy_(new)
        model.sub_(mean, alpha=1e-4)

    took = clock(in_place)
    floor = ACCESSES * DIM / bandwidth
    rows.append({"what": "fp32 arrival, in-place torch", "us": took, "floor, us": floor, "of the floor": took / floor})
    best = next(row["of the floor"] for row in rows if row["what"].startswith("fp32") and "in use" in row["what"])
    return rows, best


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU here: torch.cuda.is_available() is False")
    wrong = check() + check_tapes() + check_tables()
    print("Triton against the reference:", "equal, bit for bit" if not wrong else "")
    for line in wrong:
        print("  " + line)
    rows, ratio = measure()
    columns = ["what", "us", "GB/s", "floor, us", "of the floor", "us with launches"]
    print("  ".join(name.ljust(44 if name == "what" else 16) for name in columns))
    for row in rows:
        cells = [row.get(name, "") for name in columns]
        texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("  ".join(text.ljust(44 if i == 0 else 16) for i, text in enumerate(texts)))
    print(f"target: fp32 arrival within 1.3 of the floor: {ratio:.3f} -> {'met' if ratio <= 1.3 else 'NOT MET'}")
    if len(sys.argv) > 1:
        content = {
            "benchmark": "gpu_table",
            "command": "PYTHONPATH=src python3 benchmarks/gpu_table.py",
            "date": time.strftime("%Y-%m-%d"),
            "machine": {
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "kernels": kernels.describe(),
            },
            "differences": wrong,
            "rows": rows,
            "targets": [
                {"what": "fp32 arrival, of the floor", "measured": ratio, "asked": "<= 1.3", "met": ratio <= 1.3}
            ],
        }
        Path(sys.argv[1]).write_text(json.dumps(content, indent=2) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
