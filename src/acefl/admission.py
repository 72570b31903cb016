"""The one gate every arrival passes before it can touch model or table."""

from __future__ import annotations

import math

import torch

from acefl.types import Arrival, Vector

REASONS = ("unknown-client", "wrong-shape", "wrong-dtype", "future-version", "duplicate", "non-finite")


class Gate:
    """Decides about each arrival by what can be checked without trusting the client.

    `finite=False` leaves out the look at the numbers: it costs a device synchronisation per arrival, which a simulator
    on a GPU need not pay for its own arithmetic.
    """

    def __init__(self, clients: int, like: Vector, *, finite: bool = True) -> None:
        self.clients = clients
        self._shape = like.shape
        self._dtype = like.dtype
        self._finite = finite
        self._last_task: dict[int, int] = {}

    def refusal(self, arrival: Arrival, version: int) -> str:
        """A reason code, or the empty string: then the arrival counts as accepted and its task as answered."""
        if not 0 <= arrival.client < self.clients:
            return "unknown-client"
        if arrival.update.shape != self._shape:
            return "wrong-shape"
        if arrival.update.dtype != self._dtype:
            return "wrong-dtype"
        if not 0 <= arrival.trained_on <= version or arrival.version != version:
            return "future-version"
        if arrival.task <= self._last_task.get(arrival.client, -1):
            return "duplicate"
        if self._finite and not is_finite(arrival.update):
            return "non-finite"
        self._last_task[arrival.client] = arrival.task
        return ""

    def state_dict(self) -> dict[str, list[int]]:
        return {"clients": list(self._last_task), "tasks": list(self._last_task.values())}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self._last_task = dict(zip(state["clients"], state["tasks"], strict=True))


def is_finite(vector: Vector) -> bool:
    """One cheap reduction; a sum may overflow although every entry is finite, so only then look at each."""
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())
