"""Work that is computed late and together.

When a task will finish never depends on what it computes. So a dispatched task only remembers its model; the first
arrival whose update is missing makes waiting tasks be computed in one batched call, those due soonest first. A task
that takes no batches (one gradient fills the device) computes nothing before it is needed.
"""

from __future__ import annotations

import heapq
import math

import torch

from acefl.core.state import snapshot
from acefl.core.types import State, Vector
from acefl.tasks.base import Task

_COPY_ROWS_ABOVE = 16_384  # elements: a small row may keep its whole batch alive, a large one is copied out of it


class LazyWork:
    """The tasks in flight: models kept once per version until computed, updates until taken."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._models: dict[int, Vector] = {}
        self._waiting: dict[int, tuple[float, int, int, int]] = {}  # task id -> (due, model version, client, key)
        self._done: dict[int, Vector] = {}
        self._finite: set[int] = set()  # computed tasks whose batch held nothing but finite numbers

    def add(self, task_id: int, client: int, key: int, model: Vector, version: int, due: float = 0.0) -> None:
        if version not in self._models:
            self._models[version] = model.clone()
        self._waiting[task_id] = (due, version, client, key)

    def take(self, task_id: int) -> Vector:
        """The task's update; computed, with others that are waiting, if it is not there yet."""
        if task_id in self._waiting:
            self._compute(task_id)
        return self._done.pop(task_id)

    def known_finite(self, task_id: int) -> bool:
        """Whether a task that was taken is known to be finite; asked once."""
        if task_id in self._finite:
            self._finite.remove(task_id)
            return True
        return False

    def drop(self, task_id: int) -> None:
        """Nobody will ask for this one."""
        self._finite.discard(task_id)
        self._waiting.pop(task_id, None)
        self._done.pop(task_id, None)

    def _compute(self, wanted: int) -> None:
        limit = self._task.batch_limit
        ids = list(self._waiting)
        if len(ids) > limit:
            due = self._waiting
            ids = heapq.nsmallest(limit, ids, key=lambda task_id: (task_id != wanted, due[task_id][0], task_id))
        _, versions, clients, keys = zip(*map(self._waiting.__getitem__, ids), strict=True)
        models = torch.stack([self._models[version] for version in versions])
        updates = self._task.updates(models, list(clients), list(keys))
        if updates.device.type == "cpu" and math.isfinite(float(updates.sum())):  # one look for the whole batch
            self._finite.update(ids)
        copy = updates.shape[1] > _COPY_ROWS_ABOVE and len(ids) > 1
        rows = updates.unbind(0)
        self._done.update(zip(ids, [row.clone() for row in rows] if copy else rows, strict=True))
        if len(ids) == len(self._waiting):
            self._waiting.clear()
            self._models.clear()
            return
        for task_id in ids:
            del self._waiting[task_id]
        still = {version for _, version, _, _ in self._waiting.values()}
        self._models = {version: model for version, model in self._models.items() if version in still}

    def state_dict(self) -> State:
        return {
            "models": snapshot(map(str, self._models), lambda version: self._models[int(version)]),
            "waiting": [[task_id, *what] for task_id, what in self._waiting.items()],
            "done": snapshot(map(str, self._done), lambda task_id: self._done[int(task_id)]),
        }

    def load_state_dict(self, state: State) -> None:
        self._models = {int(version): model for version, model in state["models"].items()}
        self._waiting = {
            task_id: (due, version, client, key) for task_id, due, version, client, key in state["waiting"]
        }
        self._done = {int(task_id): update for task_id, update in state["done"].items()}
