"""What one computer with everybody's data would reach: the score by which one sees what federation costs."""

from __future__ import annotations

import torch

from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.tasks.torch_task import TorchTask


def centralised(task: TorchTask, *, steps: int = 400, lr: float = 0.05) -> Vector:
    """The model after so many steps of Adam on the exact gradient of the mean over clients of their losses.

    The rate falls to zero along half a cosine.

    Args:
        task: Any task without local steps.
        steps: Of Adam, each on all data.
        lr: The rate of the first step.
    """
    require(steps >= 1, f"steps is {steps}; allowed: at least 1")
    model = task.initial().requires_grad_()
    adam = torch.optim.Adam([model], lr=lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        model.grad = task.mean_gradient(model.detach())
        adam.step()
        falling.step()
    return model.detach()
