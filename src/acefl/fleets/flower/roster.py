"""Who is in the federation: nodes and their client numbers, who is connected, who is at work, who keeps failing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from acefl.core.errors import AceflError

log = logging.getLogger("acefl")

FAILURES = 3  # in a row, of every node there is: then something is wrong with the app, not with a node
LONGEST_REST = 60.0  # seconds before a node that keeps failing is tried again


class EverybodyFails(AceflError):
    """Every connected node fails again and again: something is wrong with the app."""


@dataclass
class Node:
    id: int
    client: int
    connected: bool = True
    busy: bool = False
    failures: int = 0  # in a row
    rests_until: float = 0.0
    unpacks: bool = False  # whether its last answer was made by our mod, which unpacks models

    def facts(self, event: str, **more: str) -> dict[str, dict[str, object]]:
        """What a log collector wants to know beside the words."""
        return {"facts": {"event": event, "client": self.client, "node": str(self.id), **more}}


class Roster:
    """Nodes get client numbers in the order they are first seen, and keep them: who comes back is the same client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_id: dict[int, Node] = {}
        self.nodes: list[Node] = []  # by client number

    @property
    def connected(self) -> list[Node]:
        return [node for node in self.nodes if node.connected]

    def update(self, there: Iterable[int]) -> tuple[list[Node], list[Node]]:
        """Compare with the ids of who is connected now; says who is new and who has left."""
        ids = set(there)
        joined = [self._add(node_id) for node_id in sorted(ids - self._by_id.keys())]
        left = [node for node in self.nodes if node.connected and node.id not in ids]
        for node in self.nodes:
            if not node.connected and node.id in ids:
                log.info("client %d (node %d) is back", node.client, node.id, extra=node.facts("back"))
                node.failures, node.rests_until = 0, 0.0
            node.connected = node.id in ids
        for node in left:
            log.warning("client %d (node %d) has left", node.client, node.id, extra=node.facts("left"))
        return joined, left

    def remember(self, ids: Iterable[int]) -> list[Node]:
        """Give numbers to those of these nodes that have none; they count as gone until they are seen."""
        return [self._add(node_id, connected=False) for node_id in ids if node_id not in self._by_id]

    def _add(self, node_id: int, *, connected: bool = True) -> Node:
        node = self._by_id[node_id] = Node(node_id, len(self.nodes), connected)
        self.nodes.append(node)
        log.info("node %d is client %d", node_id, node.client, extra=node.facts("joined"))
        return node

    def is_ready(self, node: Node) -> bool:
        return node.connected and not node.busy and node.rests_until <= self._clock()

    def failed(self, node: Node, reason: str) -> None:
        """Let a node rest, longer each time; EverybodyFails when all of them fail again and again."""
        node.failures += 1
        node.rests_until = self._clock() + min(2.0 ** (node.failures - 1) - 1, LONGEST_REST)
        log.warning(
            "client %d (node %d) did not answer as asked: %s",
            *(node.client, node.id, reason),
            extra=node.facts("lost", reason=reason),
        )
        there = self.connected
        if there and all(other.failures >= FAILURES for other in there):
            raise EverybodyFails(f"every connected node failed {FAILURES} times in a row, the last with: {reason}")

    def load(self, ids: Iterable[int]) -> None:
        """Give these nodes the numbers they had; they count as gone until they are seen."""
        self.nodes, self._by_id = [], {}
        self.remember(ids)
