"""What our side of a ServerApp costs with many nodes: calls of the grid, processor time, how long answers lie there.

`python -m benchmarks.flower_scale` (two minutes) runs `run_async` on a grid without Flower's processes, whose nodes
answer a message of 1 MB after about five seconds (as those of Flower do), a tenth of them after 25. So everything that
is measured is ours.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from acefl import ACED, Stop
from acefl.fleets.flower.records import ORDER, UPDATE
from acefl.flower import run_async
from benchmarks.common import report

DIM = 250_000
USUAL, SLOW, SLOW_SHARE = 5.0, 25.0, 10
FIRST = 1000


class LightNodes:
    """Nodes that cost nothing: an answer is there some seconds after its message was pushed."""

    def __init__(self, nodes: int) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        self._nodes, self._lock = nodes, threading.Lock()
        self._update = Array("fp32", (DIM,), "acefl", torch.full((DIM,), 0.01).numpy().tobytes())
        self._ready: dict[str, tuple[float, Message]] = {}
        self.pulls = self.pushes = self.scans = 0
        self.lain: list[float] = []  # seconds that answers were there before they were pulled

    def get_node_ids(self) -> list[int]:
        self.scans += 1
        return list(range(FIRST, FIRST + self._nodes))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        [message] = messages
        node = message.metadata.dst_node_id - FIRST
        seconds = self._seconds(node)
        with self._lock:
            self.pushes += 1
            message_id = f"message-{self.pushes}"
            message.metadata.__dict__["_message_id"] = message_id
            self._ready[message_id] = time.monotonic() + seconds, message
        return [message_id]

    def _seconds(self, node: int) -> float:
        """Half to one and a half times the node's own, by how many messages there were."""
        own = SLOW if node % SLOW_SHARE == SLOW_SHARE - 1 else USUAL
        return own * (0.5 + (self.pushes * 0.618) % 1.0)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        [message_id] = message_ids
        with self._lock:
            self.pulls += 1
            due, question = self._ready[message_id]
            if time.monotonic() < due:
                return []
            del self._ready[message_id]
            self.lain.append(time.monotonic() - due)
        order = question.content[ORDER]
        told = {name: order[name] for name in ("run", "task", "version", "base")}
        content = RecordDict(
            {UPDATE: ArrayRecord({UPDATE: self._update}), ORDER: ConfigRecord({**told, "trained": True})}
        )
        return [Message(content, reply_to=question)]


def measure(nodes: int, seconds: float) -> dict[str, Any]:
    grid = LightNodes(nodes)
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = run_async(
        grid,  # type: ignore[arg-type]
        ACED(tau=20 * nodes, warmup="seen"),
        ArrayRecord({"w": Array(torch.zeros(DIM).numpy())}),
        stop=Stop(time=seconds),
        nodes=nodes,
        drain=0.0,
    )
    del result
    after = resource.getrusage(resource.RUSAGE_SELF)
    arrivals = len(grid.lain)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lain = heapq.nlargest(max(1, arrivals // 100), grid.lain)
    return {
        "nodes": nodes,
        "arrivals per minute": 60 * arrivals / seconds,
        "looks per answer": grid.pulls / arrivals,
        "calls per second": (grid.pulls + grid.pushes + grid.scans) / seconds,
        "our CPU ms per answer": 1000 * spent / arrivals,
        "our CPU share of a core": spent / seconds,
        "an answer lies s, mean": sum(grid.lain) / arrivals,
        "99 of 100 at most s": lain[-1],
        "peak memory MB": after.ru_maxrss / 1024,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30.0, help="per number of nodes")
    options.add_argument("--nodes", type=int, nargs="+", default=[4, 20, 100])
    given = options.parse_args()
    torch.set_num_threads(1)
    measure(2, 8.0)  # compiles what is compiled when it is first used
    rows = [measure(nodes, given.seconds) for nodes in given.nodes]
    report("flower_scale", "Our side of a ServerApp with many nodes", rows)


if __name__ == "__main__":
    main()
