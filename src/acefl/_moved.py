"""Module paths of before 0.2, for one release: they still import, with a warning that names the new path."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "admission": "core.gate",
    "attacks": "tasks.attacks",
    "checkpoint": "runs.checkpoint",
    "diagnose": "studies.diagnose",
    "errors": "core.errors",
    "experiment": "studies.compare",
    "federation": "runs.training",
    "halving": "studies.tune",
    "keyed": "core.rng",
    "leaderboard": "paper.leaderboard",
    "loggers": "runs.loggers",
    "loop": "core.loop",
    "optimizers": "core.optimizers",
    "privacy": "tasks.privacy",
    "record": "runs.record",
    "replay": "runs.replay",
    "reproduce": "paper",
    "resuming": "runs.resume",
    "schedules": "core.schedules",
    "server": "core.server",
    "simulation": "runs.simulate",
    "state": "core.state",
    "stop": "core.stop",
    "sweep": "studies.sweep",
    "timing": "fleets.scenario",
    "types": "core.types",
    "wire": "fleets.wire",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        return ModuleSpec(name, self) if package == "acefl" and old in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"acefl.{MOVED[spec.name.removeprefix('acefl.')]}"
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=4)
        return import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """It was run when it was imported by its new name."""


def accept_old_paths() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
