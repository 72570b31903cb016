"""What chaos on Flower and on Ray share: how the books of a run are checked when it is over, and memory over time."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from acefl import Run
from acefl.core.rule import Method
from acefl.runs.replay import replay
from acefl.tasks.base import Task

LOST = "in a checkpoint, and gone when resumed"


def books(made: Run, rule: Method, task: Task | None = None) -> dict[str, Any]:
    """What a finished run's record says; replayed with its own method it must give its own model."""
    events = made.events
    accepted, refused = events[events["accepted"]], events[~events["accepted"]]
    twice = accepted.groupby(["client", "sent"]).size()
    assert made.journal is not None
    kinds = Counter(made.journal["kind"])
    books = {made.arrivals, len(accepted), kinds["arrived"], sum(made.participation)}
    return {
        "tasks sent": kinds["sent"],
        "accepted": len(accepted),
        "accepted twice": int((twice > 1).sum()),
        "books of what was accepted differ by": max(books) - min(books),
        "refused": len(refused),
        "reasons": dict(Counter(refused["reason"])),
        "refused without a reason": int((refused["reason"] == "").sum()),
        "lost": kinds["lost"],
        "clients": len(made.participation),
        "steps": made.steps,
        "bytes of the journal": _size(made),
        "model equals the replay, bit for bit": bool(torch.equal(replay(made, rule, task=task).model, made.model)),
    }


def _size(made: Run) -> int:
    assert made.journal is not None
    file = io.BytesIO()
    made.journal.to_parquet(file, index=False)
    return len(file.getvalue())


def checkpoints_lost(lines: Path) -> int:
    """How many accepted arrivals were in a checkpoint and gone when the run was resumed, by a run's JSON lines."""
    lost, saved = 0, 0
    for line in lines.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):
            facts = json.loads(line)
            if facts.get("event") == "checkpoint":
                saved = facts["arrivals"]
            elif facts.get("event") == "resumed":
                lost += max(0, saved - facts["arrivals"])
    return lost


def resident(processes: Iterable[int]) -> float:
    """Megabytes of memory that these processes hold."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return round(total / 1024, 1)


def by_fifths(samples: list[float]) -> list[float | None]:
    """The median in each fifth of the samples, of the moments at which the process was there."""
    fifths = [samples[k * len(samples) // 5 : (k + 1) * len(samples) // 5] for k in range(5)]
    there = [sorted(held for held in fifth if held > 0) for fifth in fifths]
    return [held[len(held) // 2] if held else None for held in there]


def targets(rows: list[dict[str, Any]], fewest_faults: int) -> list[dict[str, Any]]:
    """What was asked of chaos, and whether it was so in every row."""
    faults = min(row["faults"] for row in rows)
    asked: list[tuple[str, Any, str, bool]] = [
        ("faults, the fewest of a run", faults, str(fewest_faults), faults >= fewest_faults)
    ]
    for name in ("accepted twice", "books of what was accepted differ by", "refused without a reason", LOST):
        worst = max(row[name] for row in rows)
        asked.append((name, worst, "0", worst == 0))
    equal = all(row["model equals the replay, bit for bit"] for row in rows)
    asked.append(("model equals the replay of its record", equal, "bit for bit", equal))
    return [{"what": what, "measured": found, "asked": wanted, "met": met} for what, found, wanted, met in asked]
