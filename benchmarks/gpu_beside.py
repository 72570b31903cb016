"""Gradients of large models beside each other on a GPU: how long one takes, by how many are in one captured graph.

Needs torch and triton only: PYTHONPATH=src python3 -m benchmarks.gpu_beside [JSON]
"""

from __future__ import annotations

import json
import sys
import time

import torch

from acefl.tasks.torch_task import TorchTask
from acefl.tasks.vision import resnet18, small_cnn
from benchmarks.gpu_simulator import images

SIZES, SECONDS = (1, 2, 4, 6, 8), 1.0


def milliseconds(task: TorchTask, size: int) -> float:
    """Of one gradient where so many are computed in a call."""
    models, who = task.initial().expand(size, -1).contiguous(), list(range(size))
    for _ in range(3):
        task.compute(models, who, who)
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        for _ in range(10):
            task.compute(models, who, who)
        torch.cuda.synchronize()
        count += 10 * size
    return (time.perf_counter() - began) / count * 1e3


def same_bits(task: TorchTask, size: int = 4) -> bool:
    """Whether gradients beside each other are those computed alone, bit for bit."""
    torch.manual_seed(1)
    models, who = task.initial() + 0.01 * torch.randn(size, len(task.initial()), device="cuda"), list(range(size))
    alone = [task.compute(models[k : k + 1], [k], [k]) for k in who]
    return torch.equal(task.compute(models, who, who), torch.cat(alone))


def main() -> None:
    cases = {
        "ResNet-18 BatchNorm bf16 channels-last": (resnet18(norm="batch"), {"bf16": True, "channels_last": True}),
        "CNN 0.5M, stacked": (small_cnn(), {}),
    }
    rows = []
    for name, (model, options) in cases.items():
        task = images(model, **options)
        row = {
            "case": name,
            "ms": {size: milliseconds(task, size) for size in SIZES},
            "same bits": same_bits(task),
            "at once in a run": task.batch_limit,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    content = {
        "benchmark": "gpu_beside",
        "command": "PYTHONPATH=src python3 -m benchmarks.gpu_beside " + " ".join(sys.argv[1:]),
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
