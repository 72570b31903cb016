"""A ResNet-18 trained on CIFAR-100 in one place, for the reading "pre-trained start" of the paper's CIFAR-10 runs.

python experiments/ace/pretrain.py data/cifar100 data/start.safetensors
"""

from __future__ import annotations

import sys

from safetensors.torch import save_file

from acefl import ASGD, Stop, simulate, tasks
from acefl.core.optimizers import Momentum
from acefl.core.schedules import Cosine

STEPS = 4000


def main(folder: str, out: str, device: str = "cuda", steps: int = STEPS) -> None:
    on_gpu = device == "cuda"
    task = tasks.cifar100(
        folder, clients=1, partition="iid", norm="batch", batch=128, augment=True, device=device, bf16=on_gpu
    )
    step = {"optimizer": Momentum(), "schedule": Cosine(warmup=0.1)}
    run = simulate(task, ASGD(), lr=0.05, stop=Stop(steps=steps), evaluations=4, **step)
    save_file({name: value.contiguous().cpu() for name, value in task.module(run.model).state_dict().items()}, out)
    print(f"pre-trained: CIFAR-100 test accuracy {run.final['accuracy']:.3f} after {steps} steps", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
