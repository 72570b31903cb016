"""Work that is computed late and together.

When a task will finish never depends on what it computes. So a dispatched task only remembers its model; the first
arrival whose update is missing makes waiting tasks be computed in one batched call, those due soonest first. A task
that takes no batches (one gradient fills the device) computes nothing before it is needed. Where the task computes
clients on one model version together, and enough of them wait, they are the batch.

What is computed together goes by the waiting tasks alone: a resumed run computes the same batches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch

from acefl.core.state import snapshot
from acefl.core.turns import Sent
from acefl.core.types import State, Vector
from acefl.tasks.base import Task, sharing

_COPY_ROWS_ABOVE = 16_384  # elements: a small row may keep its whole batch alive, a large one is copied out of it
_WORTH_SHARING = 4  # tasks on one model version: fewer are computed with others, on whatever versions


class LazyWork:
    """The tasks in flight: models kept once per version until computed, updates until taken.

    `known`: computed updates that need no second look: their batch had the form of its models, one row after another,
    and on a CPU all its numbers were finite. On a GPU nobody looks at those, since that would wait for it.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._shares = task, sharing(task)
        self._models: dict[int, Vector] = {}
        self._sent: Sent | None = None  # the models of the last tasks that were added in one go, not in `_models` yet
        self._waiting: dict[int, tuple[float, int, int, int]] = {}  # task id -> (due, model version, client, key)
        self._done: dict[int, Vector] = {}  # computed, but not known
        self.known: dict[int, Vector] = {}
        self._taken: set[int] = set()  # known ones that were taken, until somebody asks

    @property
    def batches(self) -> bool:
        """Whether more is computed than is needed at once."""
        return self._task.batch_limit > 1

    def add(self, task_id: int, client: int, key: int, model: Vector, version: int, due: float = 0.0) -> None:
        self._spread()
        if version not in self._models:
            self._models[version] = model.clone()
        self._waiting[task_id] = (due, version, client, key)

    def add_many(
        self, tasks: range, dues: Sequence[float], clients: Sequence[int], keys: Sequence[int], sent: Sent
    ) -> None:
        """`add` for tasks that start one after another, from the models of these versions."""
        self._spread()
        self._sent = sent
        self._waiting.update(zip(tasks, zip(dues, sent.versions, clients, keys, strict=True), strict=True))

    def _spread(self) -> None:
        """Put models that came together beside the others."""
        if self._sent is None:
            return
        for version, row in enumerate(_own(self._sent.models), self._sent.versions[0]):
            self._models.setdefault(version, row)
        self._sent = None

    def compute(self, task_id: int) -> None:
        """See to it that this task's update is there, and with it others that are waiting."""
        if task_id in self._waiting:
            self._compute(task_id)

    def take(self, task_id: int) -> Vector:
        """The task's update; computed, with others that are waiting, if it is not there yet."""
        self.compute(task_id)
        known = self.known.pop(task_id, None)
        if known is None:
            return self._done.pop(task_id)
        if known.device.type == "cpu":
            self._taken.add(task_id)
        return known

    def known_finite(self, task_id: int) -> bool:
        """Whether a task that was taken is known to be finite; asked once."""
        if task_id in self._taken:
            self._taken.remove(task_id)
            return True
        return False

    def drop(self, task_id: int) -> None:
        """Nobody will ask for this one."""
        self._waiting.pop(task_id, None)
        self.known.pop(task_id, None)
        self._done.pop(task_id, None)

    def _compute(self, wanted: int) -> None:
        alike = self._on_its_version(wanted)
        ids = alike or self._soonest(list(self._waiting), wanted, self._task.batch_limit)
        _, versions, clients, keys = zip(*map(self._waiting.__getitem__, ids), strict=True)
        if alike and self._shares is not None:
            self._spread()
            model = self._models[versions[0]]
            models, updates = model.expand(len(ids), -1), self._shares.shared_updates(model, list(clients), list(keys))
        else:
            models = self._stacked(versions)
            updates = self._task.updates(models, list(clients), list(keys))
        updates = updates.detach()  # a task of one's own may leave on it how it was computed
        known = updates.shape == models.shape and updates.dtype == models.dtype and updates.is_contiguous()
        if updates.device.type == "cpu":
            known = known and math.isfinite(float(updates.sum()))  # one look for the whole batch
        (self.known if known else self._done).update(zip(ids, _own(updates), strict=True))
        if len(ids) == len(self._waiting):
            self._waiting.clear()
            self._models.clear()
            self._sent = None
            return
        self._spread()
        for task_id in ids:
            del self._waiting[task_id]
        still = {version for _, version, _, _ in self._waiting.values()}
        self._models = {version: model for version, model in self._models.items() if version in still}

    def _on_its_version(self, wanted: int) -> list[int]:
        """The waiting tasks from the same model as this one, where they are computed together."""
        if self._shares is None:
            return []
        version = self._waiting[wanted][1]
        alike = [task_id for task_id, (_, own, _, _) in self._waiting.items() if own == version]
        return self._soonest(alike, wanted, self._shares.shared_limit) if len(alike) >= _WORTH_SHARING else []

    def _soonest(self, ids: list[int], wanted: int, limit: int) -> list[int]:
        """So many of these, the one that is wanted among them."""
        if len(ids) <= limit:
            return ids
        due = self._waiting
        return heapq.nsmallest(limit, ids, key=lambda task_id: (task_id != wanted, due[task_id][0], task_id))

    def _stacked(self, versions: Sequence[int]) -> torch.Tensor:
        """A row for each version; what was sent in one go, one version after the other, is there already."""
        if self._sent is not None and len(self._sent.models) == len(versions) and self._sent.versions == [*versions]:
            return self._sent.models
        self._spread()
        models = [self._models[version] for version in versions]
        return models[0].unsqueeze(0) if len(models) == 1 else torch.stack(models)  # of one large model, no copy

    def state_dict(self) -> State:
        self._spread()
        done = self._done | self.known
        return {
            "models": snapshot(map(str, self._models), lambda version: self._models[int(version)]),
            "waiting": [[task_id, *what] for task_id, what in self._waiting.items()],
            "done": snapshot(map(str, done), lambda task_id: done[int(task_id)]),
        }

    def load_state_dict(self, state: State) -> None:
        self._models = {int(version): model for version, model in state["models"].items()}
        self._waiting = {
            task_id: (due, version, client, key) for task_id, due, version, client, key in state["waiting"]
        }
        self._done = {int(task_id): update for task_id, update in state["done"].items()}
        self._sent, self.known = None, {}


def _own(rows: torch.Tensor) -> Sequence[Vector]:
    """The rows, each with memory of its own where keeping one must not keep them all."""
    copy = rows.shape[1] > _COPY_ROWS_ABOVE and len(rows) > 1
    return [row.clone() for row in rows.unbind(0)] if copy else rows.unbind(0)
