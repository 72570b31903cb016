"""What one computer with everybody's data reaches on the natural tasks: `python -m benchmarks.natural [TASK ...]`.

The same model as in federation, by Adam on the gradient of the mean over clients, judged by what they hold out: 400
steps on all data, unless another number suits the task. The record keeps the rows of tasks that are not named. `--data
FOLDER` says where the files lie of those tasks that no package brings; without it they are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from acefl.tasks import natural
from acefl.tasks.natural.reference import reference_settings
from acefl.tasks.torch_task import TorchTask
from benchmarks.common import RESULTS, report

MAKERS: dict[str, Callable[..., TorchTask]] = {make.__name__: make for make in natural.TASKS}
FROM_A_FOLDER = ("cifar100", "heart", "news")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(MAKERS)}; none: all that can be had")
    parser.add_argument("--data", metavar="FOLDER", help=f"where the files of {', '.join(FROM_A_FOLDER)} lie")
    given = parser.parse_args()
    unknown = [name for name in given.tasks if name not in MAKERS]
    if unknown:
        parser.error(f"unknown task {', '.join(unknown)}; allowed: {', '.join(MAKERS)}")
    names = given.tasks or [name for name in MAKERS if name not in FROM_A_FOLDER]
    rows = _recorded() | {f"natural.{name}": _measured(name, given.data) for name in names}
    report("natural", "Centralised references of the natural tasks", [rows[name] for name in sorted(rows)])


def _recorded() -> dict[str, dict[str, Any]]:
    path = RESULTS / "natural.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {row["task"]: row for row in rows}


def _measured(name: str, folder: str | None) -> dict[str, Any]:
    task = MAKERS[name](folder) if name in FROM_A_FOLDER and folder else MAKERS[name]()
    settings = reference_settings(task)
    start, end = (task.evaluate(model).metrics for model in (task.initial(), natural.centralised(task)))
    return {
        "task": f"natural.{name}",
        "clients": task.clients,
        "samples": sum(task.samples),
        "parameters": len(task.initial()),
        "reference": ", ".join(f"{what}={value}" for what, value in settings.items() if value is not None),
        "held-out client loss at the start": start["heldout_client_loss"],
        "held-out client loss": end["heldout_client_loss"],
        "held-out client accuracy": end.get("heldout_client_accuracy", "–"),
    }


if __name__ == "__main__":
    main()
