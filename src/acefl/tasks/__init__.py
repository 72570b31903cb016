"""Tasks: a model, its data split over clients, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acefl.errors import InvalidInput
from acefl.tasks.base import Evaluation, Task
from acefl.tasks.cifar import cifar10, cifar100
from acefl.tasks.digits import digits
from acefl.tasks.partition import partition
from acefl.tasks.quadratic import Quadratic, quadratic
from acefl.tasks.torch_task import LocalSteps, TorchTask, batch_statistics

TASKS: dict[str, Callable[..., Task]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "quadratic": quadratic,
}


def build(description: dict[str, Any]) -> Task:
    """The task a record describes."""
    arguments = dict(description)
    name = arguments.pop("name", None)
    if name not in TASKS:
        raise InvalidInput(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    try:
        return TASKS[name](**arguments)
    except TypeError as error:
        raise InvalidInput(f"task {name}: {error}") from None


__all__ = [
    "TASKS",
    "Evaluation",
    "LocalSteps",
    "Quadratic",
    "Task",
    "TorchTask",
    "batch_statistics",
    "build",
    "cifar10",
    "cifar100",
    "digits",
    "partition",
    "quadratic",
]
