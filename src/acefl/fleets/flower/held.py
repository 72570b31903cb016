"""The client's side of client-held ACE: what the server has of this client, kept in the node's Flower context.

The server keeps only the sum of everybody's last gradient, so a client sends the change since the one that is in the
sum, and both must agree on which one that is. The server says so with each model: the task it last accepted (`base`).
The client keeps the sum of all it had sent up to the last such task, and beside it what it sent since. Of these two one
is what the server has, whether the last answer got through or not. A client that finds neither has lost its memory: it
says so (`NO_BASE`) and sends its whole gradient.

What is kept is what the server received, rounding of the wire included, in float64: the sum does not drift.
"""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from acefl.core.types import Vector
from acefl.fleets.flower.records import NO_BASE

_ARRAYS, _TASKS = "acefl-held", "acefl-held-tasks"


class Held:
    """The two memories, in a Flower context's state; those of another run are forgotten."""

    def __init__(self, state: RecordDict, run: str) -> None:
        self._state, self._run = state, run
        tasks = state.get(_TASKS)
        self._accepted = self._sent = NO_BASE
        if isinstance(tasks, ConfigRecord) and tasks.get("run") == run:
            self._accepted, self._sent = (int(str(tasks[name])) for name in ("accepted", "sent"))

    def before(self, base: int, dim: int) -> tuple[int, Vector]:
        """What the server has of this client, and the task that says so; zeros and NO_BASE if that is not known."""
        if base == NO_BASE or base not in (self._accepted, self._sent):
            return NO_BASE, torch.zeros(dim, dtype=torch.float64)
        arrays = self._state[_ARRAYS]
        assert isinstance(arrays, ArrayRecord)
        total = _tensor(arrays, "accepted")
        return base, total + _tensor(arrays, "sent") if base == self._sent else total

    def keep(self, base: int, before: Vector, task: int, sent: Vector) -> None:
        """Remember what the server has, and what it will have if this answer gets through."""
        self._state[_ARRAYS] = ArrayRecord({"accepted": before, "sent": sent})
        self._state[_TASKS] = ConfigRecord({"run": self._run, "accepted": base, "sent": task})


def _tensor(arrays: ArrayRecord, name: str) -> Vector:
    return torch.from_numpy(np.array(arrays[name].numpy())).double()
