"""Steps at every answer, on a grid that delivers every answer twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from acefl import Every, Stop, rules
from acefl.flower import run_async
from acefl.runs.live import LivePage
from acefl.runs.live_log import JsonLines
from flower_chaos import task

app = ServerApp()


class Doubling:
    """A grid that hands out every answer twice, and at the next look the last one once more."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._last: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(self._grid.pull_messages(message_ids))
        again, self._last = self._last, found[:1]
        return [*found, *found, *again]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    run_async(
        Doubling(grid),  # type: ignore[arg-type]
        rules.parse(str(config["method"])),
        ArrayRecord({"w": Array(task.start().numpy())}),
        lr=task.LR,
        stop=Stop(time=float(config["seconds"])),
        out=str(config["out"]),
        checkpoint=Every(arrivals=1),
        observers=[LivePage(int(config["live"])), JsonLines(str(config["lines"]))],
        drain=15.0,
    )
