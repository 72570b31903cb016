"""One way back from a directory to an object, whatever wrote it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from acefl.runs import record
from acefl.studies.results import Comparison, Diagnosis, Leaderboard, Recorded, Search, Sweep

_KINDS: dict[str, type[Recorded]] = {
    "diagnose.json": Diagnosis,
    "tuning.json": Search,
    "leaderboard.json": Leaderboard,
    "sweep.json": Sweep,
    "compare.json": Comparison,
}


def load(directory: str | os.PathLike[str]) -> Any:
    """Read what was recorded: a `Run`, a `Comparison`, a sweep, a search, a leaderboard or a diagnosis.

    Args:
        directory: What `out=` or `run.save` named.
    """
    folder = Path(directory)
    kind = next((kind for name, kind in _KINDS.items() if (folder / name).exists()), None)
    if kind is not None:
        return kind(folder)
    return record.load(folder)
