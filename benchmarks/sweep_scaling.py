"""A sweep on several local workers against one: twelve cells of digits MLP, start-up of the workers included.

`--device cuda --workers 1 4 12`: workers that share a GPU, on which one small run leaves most of the device idle.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from acefl.studies.sweep import Grid, sweep
from benchmarks.common import report

ARRIVALS = 20_000
ON_GPU = "benchmarks.gpu_simulator:digits_shaped"
TURNS = 2


def grid(device: str, arrivals: int) -> dict[str, Any]:
    home = "device" if device == "cuda" else "memory"
    return {
        "method": [f"ACE(home={home!r})", "FedBuff", "ASGD"],
        "lr": [0.05, 0.1],
        "seed": [0, 1],
        "task": {"name": ON_GPU} if device == "cuda" else {"name": "digits", "model": "mlp"},
        "scenario": {"spread": 30.0},
        "stop": {"arrivals": arrivals},
    }


def seconds(workers: int, device: str, arrivals: int = ARRIVALS) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = sweep(Grid.of(grid(device, arrivals)), Path(folder) / "sweep", workers=workers)
        assert not outcome.failed
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="one of them is 1")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seconds(1, given.device, arrivals=500)  # warms up the caches of the disk and of the compiler
    rows = [_row(turn, given.device, given.workers) for turn in range(1, TURNS + 1)]
    targets = []
    if given.device == "cpu":
        gain = max(row["2 workers, times 1"] for row in rows)
        targets.append({"what": "two workers over one", "measured": gain, "asked": ">= 1.8", "met": gain >= 1.8})
    title = (__doc__ or "").partition("\n")[0]
    report("sweep_scaling", title, rows, targets, variant="_gpu" if given.device == "cuda" else "")


def _row(turn: int, device: str, workers: list[int]) -> dict[str, float]:
    took = {count: seconds(count, device) for count in workers}
    row: dict[str, float] = {"turn": turn, **{f"{count} workers, s": took[count] for count in workers}}
    return row | {f"{count} workers, times 1": took[1] / took[count] for count in workers if count > 1}


if __name__ == "__main__":
    main()
