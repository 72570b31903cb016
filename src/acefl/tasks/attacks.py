"""Hostile clients for the simulator: a task in which a share of the clients sends something else than it should.

```python
task = attacked(tasks.digits(), "sign-flip", fraction=0.3, seed=0)
```

Everybody else's updates, the starting model and the evaluation are those of the task itself, bit for bit. An attack
keeps no state: what a hostile client sends follows from its model, its data and its key, so that runs under attack are
repeatable and can be resumed as any others. In a description of a task, as `compare` and sweeps take it, the attack is
`"attack": {"attack": "sign-flip", "fraction": 0.3}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from acefl.core import rng as keyed
from acefl.core.errors import one_of, require
from acefl.core.types import Vector
from acefl.tasks.base import Evaluation, Shown, Task, client_names

_HOSTILE_STREAM, _REPLAY_STREAM, _NOISE_STREAM = 71, 72, 73

STRENGTHS = {
    "sign-flip": 1.0,  # its update times -strength: uphill
    "scaling": 10.0,  # its update times strength: the model overshoots on its data
    "gaussian": 1.0,  # noise, strength times as long as its update: nothing to learn from
    "label-flip": 1.0,  # trains on labels counted from the other end; strength times that update
    "stale-replay": 1.0,  # strength times its update of the very first model, for ever
    "free-rider": 0.0,  # zeros: takes part, does no work
}
ATTACKS = tuple(STRENGTHS)


def attacked(task: Task, attack: str, *, fraction: float, seed: int = 0, strength: float | None = None) -> Attacked:
    """The task with `fraction` of its clients (rounded to whole ones, drawn by `seed`) hostile.

    `strength` scales what they send; every attack has its own usual one in `STRENGTHS`. `label-flip` needs a
    `TorchTask` with whole-numbered labels, on the CPU.

    Args:
        task: The task to attack.
        attack: `sign-flip`, `scaling`, `gaussian`, `label-flip`, `stale-replay` or `free-rider`.
        fraction: Share of hostile clients.
        seed: Draws who they are.
        strength: See above; None: the attack's usual one.
    """
    one_of("attack", attack, ATTACKS)
    require(0.0 <= fraction <= 1.0, f"fraction is {fraction}; allowed: from 0 to 1")
    used = STRENGTHS[attack] if strength is None else strength
    require(math.isfinite(used), f"strength is {strength}; allowed: a finite number")
    return Attacked(task, attack, fraction, seed, used)


class Attacked(Shown):
    """A task of which some clients are hostile; `hostile` says who."""

    def __init__(self, task: Task, attack: str, fraction: float, seed: int, strength: float) -> None:
        self._task, self._attack, self._strength, self._seed = task, attack, strength, seed
        self._described = {"attack": attack, "fraction": fraction, "seed": seed, "strength": strength}
        self.clients, self.samples, self.names = task.clients, task.samples, client_names(task)
        self.objective, self.batch_limit = task.objective, task.batch_limit
        drawn = sorted(range(task.clients), key=lambda client: keyed.key(seed, _HOSTILE_STREAM, client))
        self.hostile = frozenset(drawn[: round(fraction * task.clients)])
        self._poison = _flipped_labels(task, self.hostile) if attack == "label-flip" else None

    def describe(self) -> dict[str, Any]:
        return {**self._task.describe(), "attack": dict(self._described)}

    def initial(self) -> Vector:
        return self._task.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        """By the true data of everybody, hostile or not."""
        return self._task.evaluate(model)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """All are computed as one call, so that the honest rows are those of the task without an attack."""
        updates = self._task.updates(models, clients, keys)
        bad = [row for row, client in enumerate(clients) if client in self.hostile]
        if bad:
            who, their_keys = [clients[row] for row in bad], [keys[row] for row in bad]
            sent = self._sent(updates[bad], models[bad], who, their_keys)
            updates = updates.clone()
            updates[bad] = sent
        return updates

    def _sent(self, own: torch.Tensor, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """What hostile clients send in place of their `own` updates."""
        if self._attack == "sign-flip":
            return own * -self._strength
        if self._attack == "scaling":
            return own * self._strength
        if self._attack == "gaussian":
            noise = keyed.normal([keyed.key(k, _NOISE_STREAM) for k in keys], own.shape[1], own.device)
            lengths: torch.Tensor = torch.linalg.vector_norm(own, dim=1, keepdim=True)
            return noise * (lengths * self._strength / math.sqrt(own.shape[1]))
        if self._attack == "stale-replay":
            first = self._task.initial().expand(len(clients), -1).contiguous()
            once = [keyed.key(self._seed, _REPLAY_STREAM, client) for client in clients]
            return self._task.updates(first, clients, once) * self._strength
        if self._poison is not None:
            return self._poison(models, clients, keys) * self._strength
        return torch.zeros_like(own)


def _flipped_labels(
    task: Task, hostile: frozenset[int]
) -> Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]:
    """What computes updates of the task as if the hostile clients' label y were (number of labels - 1 - y)."""
    from acefl.tasks.torch_task import TorchTask

    data = task._data if isinstance(task, TorchTask) else None
    whole = data is not None and not data.targets.is_floating_point() and data.targets.dim() == 1
    require(whole, "label-flip needs labels; allowed: a TorchTask whose targets are one whole number per sample")
    assert data is not None
    require(data.device.type == "cpu", f"label-flip on {data.device.type}; allowed: a task on the CPU")
    true = data.targets
    theirs = torch.isin(data.owner, torch.tensor(sorted(hostile), dtype=torch.int64))
    flipped = torch.where(theirs, true.max() + true.min() - true, true)

    def updates(models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        with data.with_targets(flipped):
            return task.updates(models, clients, keys)

    return updates
