"""Gradients of a large model beside each other on a GPU: how long one takes, by how many are in one captured graph.

`python -m benchmarks.gpu_beside`
"""

from __future__ import annotations

import time

import torch

from acefl.tasks.torch_task import TorchTask
from acefl.tasks.vision import resnet18
from benchmarks.common import report
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
    task = images(resnet18(norm="batch"), bf16=True, channels_last=True)
    case = {"case": "ResNet-18 BatchNorm bf16 channels-last", "same bits": same_bits(task)}
    rows = [{**case, "beside each other": size, "ms": milliseconds(task, size)} for size in SIZES]
    report("gpu_beside", f"A gradient on {torch.cuda.get_device_name()}", rows)


if __name__ == "__main__":
    main()
