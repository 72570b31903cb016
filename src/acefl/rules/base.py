"""What rules share: who is in the federation, and a table with its running sum."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from acefl.core.rule import Advanced, Audience, Buffered, Method, Rule, Upload
from acefl.core.state import Stateful


class Members(Stateful):
    """How much each client weighs, and whom nobody waits for: who has left, whose work was lost, who joined late."""

    saved = ("weights", "absent")

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.absent: set[int] = set()

    def __len__(self) -> int:
        return len(self.weights)

    def join(self, clients: int, weight: float = 1.0) -> None:
        """Nobody waits for newcomers until they have come once."""
        newcomers = range(len(self.weights), clients)
        self.absent.update(newcomers)
        self.weights.extend(weight for _ in newcomers)

    def all_in(self, reported: AbstractSet[int]) -> bool:
        """Whether everybody who is waited for has reported."""
        excused = len(self.absent - reported) if self.absent else 0
        return len(reported) + excused >= len(self.weights)


__all__ = ["Advanced", "Audience", "Buffered", "Members", "Method", "Rule", "Upload"]
