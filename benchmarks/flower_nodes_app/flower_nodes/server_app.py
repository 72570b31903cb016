"""Steps at every answer until it is ended from outside, and notes when each answer was taken in."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from acefl import ACED, Arrival, Stop
from acefl.flower import run_async
from acefl.runs.observers import Observer

app = ServerApp()

SHAPES = {"hidden.weight": (300, 784), "hidden.bias": (300,), "out.weight": (10, 300), "out.bias": (10,)}  # 1 MB
NEVER = 1e6  # seconds


class Notes(Observer):
    """A line for every accepted arrival: the client, its task and the time."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "taken").open("a", buffering=1)

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if not reason:
            self._file.write(f"{arrival.client} {arrival.task} {time.time()}\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    nodes = int(context.run_config["nodes"])
    run_async(
        grid,
        ACED(tau=20 * nodes, warmup="seen"),
        ArrayRecord({name: Array(torch.randn(shape).numpy()) for name, shape in SHAPES.items()}),
        stop=Stop(time=NEVER),
        nodes=nodes,
        observers=[Notes(Path(str(context.run_config["notes"])))],
    )
