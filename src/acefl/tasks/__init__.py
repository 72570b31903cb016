"""Tasks: a model, its data split over clients, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.tasks import natural
from acefl.tasks.base import Evaluation, Task
from acefl.tasks.batch_norm import batch_statistics, carried_statistics
from acefl.tasks.cifar import cifar10, cifar100
from acefl.tasks.digits import digits
from acefl.tasks.groups import NamedClients, by_group
from acefl.tasks.language_model import language_model
from acefl.tasks.local_work import LocalSteps, LocalWork
from acefl.tasks.metrics import Metric
from acefl.tasks.news20 import news20
from acefl.tasks.partition import partition
from acefl.tasks.quadratic import Quadratic, quadratic
from acefl.tasks.torch_task import TorchTask

TASKS: dict[str, Callable[..., Task]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    **{f"natural.{task.__name__}": task for task in natural.TASKS},
    "news20": news20,
    "quadratic": quadratic,
}


def build(description: dict[str, Any]) -> Task:
    """The task a record describes, with its hostile clients if it has an `attack`.

    Args:
        description: The task's name under `name`, and its arguments.
    """
    arguments = {name: value for name, value in description.items() if name != "client_work"}  # said, not given
    attack = arguments.pop("attack", None)
    name = arguments.pop("name", None)
    if name not in TASKS:
        raise InvalidInput(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    try:
        task = TASKS[name](**arguments)
        return task if attack is None else _attacked(task, attack)
    except TypeError as error:
        raise InvalidInput(f"task {name}: {error}") from None


def _attacked(task: Task, attack: Any) -> Task:
    from acefl.tasks.attacks import attacked  # which stands on this package

    require(
        isinstance(attack, dict), f"attack is {attack!r}; allowed: a table with attack, fraction, seed and strength"
    )
    return attacked(task, **attack)


__all__ = [
    "TASKS",
    "Evaluation",
    "LocalSteps",
    "LocalWork",
    "Metric",
    "NamedClients",
    "Quadratic",
    "Task",
    "TorchTask",
    "batch_statistics",
    "build",
    "by_group",
    "carried_statistics",
    "cifar10",
    "cifar100",
    "digits",
    "language_model",
    "natural",
    "news20",
    "partition",
    "quadratic",
]
