"""The simulator on a GPU against the eager one-by-one loop, and against replaying the captured gradient alone.

Random data of the real shapes (gradients cost the same), 100 clients, spread 30. Times are wall-clock with one
synchronisation at the end. Needs torch, triton and numpy only:
PYTHONPATH=src python3 -m benchmarks.gpu_simulator [JSON]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from acefl.core.gate import Gate
from acefl.core.loop import run
from acefl.core.rule import Method
from acefl.core.server import Server
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.fleets.simulated import simulated_fleet
from acefl.rules import ACE, ASGD
from acefl.tasks.torch_task import TorchTask
from acefl.tasks.vision import resnet18, small_cnn

CLIENTS, EAGER = 100, 300


def images(model: nn.Module, batch: int = 50, **options: Any) -> TorchTask:
    data = [
        (torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (60,))) for _ in range(CLIENTS)
    ]
    return TorchTask(
        model,
        nn.CrossEntropyLoss(),
        data,
        batch=batch,
        device="cuda",
        prepare=lambda x: x.float().div(255.0),
        **options,
    )


def digits_shaped() -> TorchTask:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = [(torch.rand(13, 64), torch.randint(10, (13,))) for _ in range(CLIENTS)]
    return TorchTask(model, nn.CrossEntropyLoss(), data, batch=50, device="cuda")


def simulator(task: TorchTask, rule: Method, arrivals: int) -> None:
    model = task.initial()
    gate = Gate(CLIENTS, model, finite=False)
    server = Server(model, rule.build(CLIENTS, model, task.samples), 1e-4, CLIENTS, gate=gate)
    for _ in run(server, simulated_fleet(task, Scenario(spread=30.0), seed=0), Stop(arrivals=arrivals)):
        pass


def eager(task: TorchTask, arrivals: int) -> None:
    """Plain PyTorch: draw a minibatch, forward, backward, flatten; one client after another."""
    parameters = task._net.parameters
    offsets = task._offsets.tolist()
    for arrival in range(arrivals):
        client = arrival % CLIENTS
        draw = torch.randint(task.samples[client], (task._batch,), device="cuda") + offsets[client]
        loss = task._loss(task._output(task._inputs[draw], task._targets[draw]), task._targets[draw])
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


def captured(task: TorchTask, arrivals: int) -> None:
    """Nothing but replays of the captured gradient, as many as the simulator makes at its usual batch of 8."""
    size = min(8, task.batch_limit)
    models = task.initial().expand(size, -1).contiguous()
    for _ in range(arrivals // size):
        task.compute(models, list(range(size)), list(range(size)))


def seconds(job: Callable[[], None], repeats: int = 3) -> float:
    job()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        job()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    torch.manual_seed(0)
    cases: dict[str, tuple[TorchTask, int, float]] = {
        "digits MLP": (digits_shaped(), 5000, 20.0),
        "CNN 0.5M": (images(small_cnn()), 3000, 6.0),
        "ResNet-18 GroupNorm": (images(resnet18()), 400, 2.5),
        "ResNet-18 GroupNorm bf16 channels-last": (images(resnet18(), bf16=True, channels_last=True), 400, 2.5),
        "ResNet-18 BatchNorm bf16 channels-last": (
            images(resnet18(norm="batch"), bf16=True, channels_last=True),
            600,
            2.5,
        ),
    }
    rows = []
    for name, (task, arrivals, target) in cases.items():
        per = {
            "eager": seconds(lambda t=task: eager(t, EAGER), 2) / EAGER * 1e3,
            "captured alone": seconds(lambda t=task, a=arrivals: captured(t, a)) / arrivals * 1e3,
            "simulator ASGD": seconds(lambda t=task, a=arrivals: simulator(t, ASGD(), a)) / arrivals * 1e3,
            "simulator ACE": seconds(lambda t=task, a=arrivals: simulator(t, ACE(home="device"), a)) / arrivals * 1e3,
        }
        row = {"case": name, "strategy": task.compute.name, "parameters": len(task._net), "ms": per}
        row["times eager"] = per["eager"] / per["simulator ASGD"]
        row["times eager, ACE"] = per["eager"] / per["simulator ACE"]
        row["over captured"] = per["simulator ASGD"] / per["captured alone"]
        row["target times eager"] = target
        rows.append(row)
        print(f"{name:40s} {task.compute.name:20s} ms: " + ", ".join(f"{k} {v:.3f}" for k, v in per.items()))
        print(
            f"{'':40s} x eager {row['times eager']:.1f} (ACE {row['times eager, ACE']:.1f}; asked {target:g}), "
            f"over captured {row['over captured']:.2f}",
            flush=True,
        )
    keep("gpu_simulator", rows)


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows, with the command and the device, to the file that the command line names, if any."""
    content = {
        "benchmark": name,
        "command": f"PYTHONPATH=src python3 -m benchmarks.{name} " + " ".join(sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


if __name__ == "__main__":
    main()
