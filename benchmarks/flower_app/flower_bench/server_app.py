"""Runs ACE on a grid that notes when each message was pushed, and when each answer was found and fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from acefl import ACE, Stop
from acefl.flower import run_async

app = ServerApp()


class TimedGrid:
    """A grid beside which a clock runs."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._looked: dict[str, float] = {}
        self.notes: list[dict[str, Any]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        [message] = messages
        began = time.time()
        ids = list(self._grid.push_messages([message]))
        self.notes.append(
            {"what": "push", "node": message.metadata.dst_node_id, "id": ids[0], "began": began, "ended": time.time()}
        )
        self._looked[ids[0]] = time.time()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        [message_id] = message_ids
        began = time.time()
        answers = list(self._grid.pull_messages([message_id]))
        for answer in answers:
            self.notes.append(
                {
                    "what": "pull",
                    "node": answer.metadata.src_node_id,
                    "id": message_id,
                    "began": began,
                    "ended": time.time(),
                    "looked_before": self._looked[message_id],
                    **dict(answer.content.metric_records["metrics"] if not answer.has_error() else {}),
                }
            )
        self._looked[message_id] = began
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    config = context.run_config
    timed = TimedGrid(grid)
    run_async(
        timed,  # type: ignore[arg-type]
        ACE(warmup="seen"),
        ArrayRecord({"w": Array(torch.randn(int(config["dim"])).numpy())}),
        lr=0.01,
        stop=Stop(arrivals=int(config["arrivals"])),
        nodes=int(config["nodes"]),
        drain=20.0,
    )
    Path(str(config["out"])).write_text(json.dumps(timed.notes))
