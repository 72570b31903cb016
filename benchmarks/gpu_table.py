"""The table on a GPU: Triton kernels against the reference bit for bit, and their time against the memory floor.

d = 11.2M. The floor of an ACE arrival with the model's step is the bytes it must move (28 per parameter in fp32) at the
bandwidth that a large copy reaches on the same device. Vectors rotate so that nothing is served from the cache.
Needs torch, triton and numpy only: PYTHONPATH=src python3 -m benchmarks.gpu_table [JSON]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import torch

from acefl.kernels.layout import Layout
from acefl.table import Accumulator, Table

DIM, ROWS, REPEATS = 11_200_000, 8, 60
ENCODINGS = ("fp32", "bf16", "int8", "int4")


def milliseconds(job: Callable[[int], object]) -> float:
    """Median over single calls, by device events."""
    for turn in range(2 * ROWS):
        job(turn)
    times = []
    for turn in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        job(turn)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes per second of a copy of 2 GB, read and written."""
    source = torch.empty(2**29, device="cuda").normal_()
    target = torch.empty_like(source)
    return 2 * 4 * 2**29 / (milliseconds(lambda turn: target.copy_(source)) / 1e3)


def agrees(encoding: str) -> bool:
    """The same exchanges on the GPU and by the CPU's kernels: rows and sums equal bit for bit."""
    size = 200_000 + 37
    draw = torch.Generator().manual_seed(3)
    updates = [torch.randn(size, generator=draw) * 10.0 ** (k % 5 - 2) for k in range(12)]
    results = []
    for device in ("cpu", "cuda"):
        model = torch.zeros(size, device=device)
        table, total = Table(3, model, encoding=encoding, home="device"), Accumulator(model)
        for k, update in enumerate(updates):
            table.exchange_and_step(k % 3, update.to(device), total, 1.0, model, 1e-3)
        table.add_row(1, total, -1.0)
        results.append([table.row(0).cpu(), table.row(2).cpu(), total.value.cpu(), model.cpu()])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def main() -> None:
    speed = bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {speed / 1e12:.2f} TB/s")
    rows = []
    for encoding in ENCODINGS:
        model = torch.zeros(DIM, device="cuda")
        table, total = Table(ROWS, model, encoding=encoding, home="device"), Accumulator(model)
        updates = [torch.randn(DIM, device="cuda") for _ in range(ROWS)]
        taken = milliseconds(
            lambda turn, t=table, u=updates, s=total, m=model: t.exchange_and_step(
                turn % ROWS, u[(turn * 3) % ROWS], s, 1.0, m, 1e-6
            )
        )
        per_param = 4 + 2 * Layout(encoding, DIM).row_bytes / DIM + 8 + 8
        floor = per_param * DIM / speed * 1e3
        row = {
            "encoding": encoding,
            "bit for bit": agrees(encoding),
            "ms": taken,
            "bytes per parameter": per_param,
            "floor ms": floor,
            "over floor": taken / floor,
        }
        rows.append(row)
        print(
            "  " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True
        )
    met = rows[0]["over floor"] <= 1.3
    print(f"target: fp32 within 1.3 of the floor: {rows[0]['over floor']:.3f} -> {'met' if met else 'NOT MET'}")
    if len(sys.argv) > 1:
        content = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "bytes_per_s": speed,
            "rows": rows,
        }
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


if __name__ == "__main__":
    main()
