"""What one computer with everybody's data would reach: the score by which one sees what federation costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.tasks.torch_task import TorchTask

_REFERENCE_STREAM = 72
_USUAL: Mapping[str, Any] = {"steps": 400, "lr": 0.05, "clients": None}
_OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "natural.cifar100": {"steps": 1500, "lr": 0.001, "clients": 20},
    "natural.news": {"steps": 20},  # more fit what authors train on, and are worse on what they hold out
}


def reference_settings(task: TorchTask) -> dict[str, Any]:
    """How `centralised` trains on this task, unless told otherwise."""
    return {**_USUAL, **_OTHERWISE.get(str(task.describe().get("name")), {})}


def centralised(
    task: TorchTask, *, steps: int | None = None, lr: float | None = None, clients: int | None = None
) -> Vector:
    """The model after so many steps of Adam on the gradient of the mean over clients of their losses.

    The gradient is exact, or that of minibatches where all data at every step would take too long. The rate falls to
    zero along half a cosine.

    Args:
        task: Any task without local steps.
        steps: Of Adam; None: as many as suit the task, 400 for most.
        lr: The rate of the first step; None: what suits the task, 0.05 for most.
        clients: How many clients are drawn for a step, one minibatch of each; None: each step is on all data, but for
            CIFAR-100.
    """
    given = {name: value for name, value in (("steps", steps), ("lr", lr), ("clients", clients)) if value is not None}
    return _trained(task, **(reference_settings(task) | given))


def _trained(task: TorchTask, steps: int, lr: float, clients: int | None) -> Vector:
    require(steps >= 1, f"steps is {steps}; allowed: at least 1")
    allowed = f"from 1 to {task.clients}, or None for the exact gradient"
    require(clients is None or 1 <= clients <= task.clients, f"clients is {clients}; allowed: {allowed}")
    model = task.initial().requires_grad_()
    adam = torch.optim.Adam([model], lr=lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for step in range(steps):
        known = model.detach()
        model.grad = task.mean_gradient(known) if clients is None else _drawn(task, known, clients, step)
        adam.step()
        falling.step()
    return model.detach()


def _drawn(task: TorchTask, model: Vector, count: int, step: int) -> Vector:
    """The mean gradient of a minibatch of each of so many clients, drawn without replacement."""
    keys = {client: keyed.key(_REFERENCE_STREAM, step, client) for client in range(task.clients)}
    drawn = sorted(keys, key=keys.__getitem__)[:count]
    gradient: Vector = 0.0 * model
    for start in range(0, count, task.batch_limit):
        part = drawn[start : start + task.batch_limit]
        models = model.expand(len(part), -1).contiguous()
        gradient += task.updates(models, part, [keys[client] for client in part]).sum(0)
    return gradient / count
