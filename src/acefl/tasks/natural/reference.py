"""What one computer with everybody's data would reach: the score by which one sees what federation costs."""

from __future__ import annotations

import torch

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.tasks.torch_task import TorchTask

_REFERENCE_STREAM = 72


def centralised(task: TorchTask, *, steps: int = 400, lr: float = 0.05, clients: int | None = None) -> Vector:
    """The model after so many steps of Adam on the gradient of the mean over clients of their losses.

    The gradient is exact, or that of minibatches where all data at every step would take too long. The rate falls to
    zero along half a cosine.

    Args:
        task: Any task without local steps.
        steps: Of Adam.
        lr: The rate of the first step.
        clients: How many clients are drawn for a step, one minibatch of each; None: each step is on all data.
    """
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
