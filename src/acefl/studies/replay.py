"""A recorded run replayed with several methods, and a report of what they would have done."""

from __future__ import annotations

import os
from pathlib import Path

from acefl import report
from acefl.core.errors import require
from acefl.core.files import atomic_directory, write_json
from acefl.core.rule import Method
from acefl.core.settings import label
from acefl.runs import record
from acefl.runs.replay import replay
from acefl.studies.results import Comparison
from acefl.tasks.base import Task
from acefl.tasks.sources import TaskSource


def compare(
    directory: str | os.PathLike[str],
    methods: list[Method],
    *,
    out: str | os.PathLike[str],
    lr: float | None = None,
    task: Task | TaskSource | None = None,
    evaluations: int = 50,
) -> Comparison:
    """Replay a recorded run with several methods; `out` holds a run directory for each and one report."""
    recorded = record.load(directory)
    names = [label(rule) for rule in methods]
    require(bool(methods), "methods is empty; allowed: at least one")
    for name in names:
        require(names.count(name) == 1, f"method {name} is given twice")
    seed = int(recorded.config["seed"])
    with atomic_directory(Path(out)) as folder:
        entries = []
        for rule, name in zip(methods, names, strict=True):
            where = f"runs/{record.run_name(name, seed)}"
            made = replay(recorded, rule, lr=lr, task=task, evaluations=evaluations, out=folder / where)
            entries.append(
                {
                    "label": name,
                    "method": made.config["method"],
                    "rule": made.config["rule"],
                    "lr": made.config["lr"],
                    "tuning": [],
                    "runs": [where],
                }
            )
        content = {
            "format": record.FORMAT,
            "title": f"What {len(methods)} methods would have done with {Path(directory).name}",
            **{name: made.config[name] for name in ("task", "scenario", "stop", "machine")},
            "seeds": [seed],
            "methods": entries,
            "command": f"acefl replay {Path(directory).name}",
            "wall_seconds": 0.0,
        }
        write_json(folder / "compare.json", content)
        report.build(folder)
    return Comparison(out)
