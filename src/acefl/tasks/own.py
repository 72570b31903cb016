"""Tasks of people's own by name, `mypkg.mymodule:make_task(batch=8)`: made anywhere, in worker processes too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from acefl.core.errors import require
from acefl.core.own import check_settings, own_function
from acefl.core.types import Vector
from acefl.tasks.base import Evaluation, Shown, Task, for_run, sharing


class OwnTask(Shown):
    """A task as somebody's function made it, whose description also says which function, with which settings."""

    def __init__(self, task: Task, imported_from: str) -> None:
        self._task, self._imported_from = task, imported_from
        self.clients, self.samples = task.clients, task.samples
        self.objective, self.batch_limit = task.objective, task.batch_limit
        shares = sharing(task)
        self.shared_limit = 0 if shares is None else shares.shared_limit

    def __getattr__(self, name: str) -> Any:
        """Whatever else the task has, such as how it computes."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._task, name)

    def for_run(self, updates: float, compiled: bool | None = None, alike: bool = True) -> OwnTask:
        """See `TorchTask.for_run`."""
        return OwnTask(for_run(self._task, updates, compiled, alike), self._imported_from)

    def describe(self) -> dict[str, Any]:
        return {**self._task.describe(), "imported_from": self._imported_from}

    def initial(self) -> Vector:
        return self._task.initial()

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return self._task.updates(models, clients, keys)

    def shared_updates(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        found: torch.Tensor = self._task.shared_updates(model, clients, keys)  # type: ignore[attr-defined]
        return found

    def evaluate(self, model: Vector) -> Evaluation:
        return self._task.evaluate(model)


def check(place: str, settings: Mapping[str, Any], seed: int = 0) -> Callable[[], Any]:
    """The call of the function at `module:name` that makes the task, which is known to take these settings.

    It is told the seed if it has an argument of that name.
    """
    function = own_function(place)
    require("seed" not in settings, f"task {place} is given a seed; allowed: other settings, seeds come by themselves")
    takes_seed = "seed" in inspect.signature(function).parameters
    arguments = {**settings, **({"seed": seed} if takes_seed else {})}
    check_settings(place, function, arguments)
    return functools.partial(function, **arguments)


def make(place: str, settings: Mapping[str, Any], seed: int) -> Task:
    """What the function at `module:name` makes."""
    made: Task = check(place, settings, seed)()
    good = all(hasattr(made, name) for name in ("updates", "evaluate", "describe", "clients"))
    require(good, f"{place} made a {type(made).__name__}; allowed: a task, such as an acefl.tasks.TorchTask")
    return made


def as_typed(place: str, settings: Mapping[str, Any]) -> str:
    """As a person types it."""
    return place + (f"({', '.join(f'{name}={value!r}' for name, value in settings.items())})" if settings else "")


def difference(described: Mapping[str, Any], recorded: Mapping[str, Any]) -> str:
    """In what a task differs from the one on record, in a line; empty if in nothing.

    Which name it was made by is left out: a task may be handed over as an object too. So is the sentence on a client's
    work, which follows from the rest and which older records lack.
    """
    names = [name for name in {**recorded, **described} if name not in ("imported_from", "client_work")]
    for name in names:
        if described.get(name) != recorded.get(name):
            return f"{name} is {described.get(name)!r}; the run's was {recorded.get(name)!r}"
    return ""
