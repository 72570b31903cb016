"""What checkpoints cost: the time of a run with and without them, and what one writes when few rows have changed.

Digits, 100 clients, 5,000 arrivals, a checkpoint every 500, against the same run without. Then a model of 1.2 million
parameters and 100 clients: the first checkpoint writes everything, the next ones what changed in five arrivals. Every
checkpoint is flushed to the disk. One thread.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from acefl import ACE, Every, Scenario, Stop, simulate, tasks
from acefl.core.state import without_copies
from acefl.core.types import Vector
from acefl.runs.checkpoint import Checkpoints
from acefl.runs.simulate import simulation
from acefl.tasks.base import Evaluation
from benchmarks.common import interleaved, median_ratio, report

ARRIVALS, EVERY = 5_000, 500
CLIENTS, DIM, CHANGED, TIMES = 100, 1_200_000, 5, 8


class Still:
    """A task of any size that costs next to nothing: every update is a little of the model."""

    clients, samples, objective, batch_limit = CLIENTS, [1] * CLIENTS, "loss", 16

    def describe(self) -> dict[str, Any]:
        return {"name": "still", "dim": DIM}

    def initial(self) -> Vector:
        return torch.linspace(-1.0, 1.0, DIM)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return models * 1e-3

    def evaluate(self, model: Vector) -> Evaluation:
        return Evaluation({"loss": 0.0}, torch.zeros(CLIENTS))


def slowdown(model: str, room: Path) -> list[dict[str, Any]]:
    task = tasks.digits(clients=CLIENTS, model=model)

    def run(name: str, **more: Any) -> None:
        stop = Stop(arrivals=ARRIVALS)
        simulate(task, ACE(), lr=0.1, scenario=Scenario(spread=30.0), stop=stop, out=room / name, **more)

    seconds = interleaved(
        {"plain": lambda: run("plain"), "saved": lambda: run("saved", checkpoint=Every(arrivals=EVERY))}
    )
    plain, saved = (statistics.median(seconds[name]) for name in ("plain", "saved"))
    what = f"digits {model}, n = {CLIENTS}, {ARRIVALS:,} arrivals"
    return [
        figure(f"{what}: without checkpoints", plain, "s"),
        figure(f"{what}: one every {EVERY}", saved, "s"),
        figure(f"{what}: ratio", median_ratio(seconds["saved"], seconds["plain"]), "x"),
        figure(f"{what}: a checkpoint", 1e3 * (saved - plain) / (ARRIVALS // EVERY - 1), "ms"),
    ]


def written(encoding: str, room: Path) -> list[dict[str, Any]]:
    """Bytes and seconds of checkpoints five arrivals apart."""
    room.mkdir()
    rule = ACE(table=encoding)
    training = simulation(
        Still(), rule, lr=0.1, scenario=Scenario(spread=30.0), stop=Stop(arrivals=10_000), evaluations=1
    )
    checkpoints = Checkpoints(room)
    sizes: list[float] = []
    seconds: list[float] = []
    due = CLIENTS + 20
    for _ in training.advance():
        if training.server.accepted < due:
            continue
        due += CHANGED
        began = time.perf_counter()
        with without_copies():
            checkpoints.save(training.state_dict())
        seconds.append(time.perf_counter() - began)
        sizes.append((room / checkpoints.files[0]).stat().st_size / 1e6)
        if len(sizes) > TIMES:
            break
    what = f"n = {CLIENTS}, d = 1.2M, {encoding}"
    return [
        figure(f"{what}: the first checkpoint", sizes[0], "MB"),
        figure(f"{what}: the first checkpoint", seconds[0], "s"),
        figure(f"{what}: after {CHANGED} more arrivals", statistics.median(sizes[1:]), "MB"),
        figure(f"{what}: after {CHANGED} more arrivals", statistics.median(seconds[1:]), "s"),
    ]


def figure(what: str, value: float, unit: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        runs = [row for model in ("softmax", "mlp") for row in slowdown(model, room)]
        sizes = [row for encoding in ("fp32", "int8") for row in written(encoding, room / encoding)]
    report("checkpoint", __doc__ or "", [*runs, *sizes])


if __name__ == "__main__":
    main()
