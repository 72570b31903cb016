"""The norm of the true gradient, for tasks whose own evaluation does not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acefl.errors import require
from acefl.probes.error_terms import ExactGradients
from acefl.types import Arrival, Step

if TYPE_CHECKING:
    from acefl.server import Server
    from acefl.simulation import Simulation


class TrueGradient:
    """Adds `grad_norm` to every evaluation: the norm of the gradient of the mean of all clients' losses."""

    def started(self, run: Simulation) -> None:
        name = run.task.describe().get("name")
        require(isinstance(run.task, ExactGradients), f"task {name} offers no full gradients, so no true one")
        self._task: ExactGradients = run.task  # type: ignore[assignment]
        self._model = run.server.model  # changed in place, so always the latest

    def arrived(self, arrival: Arrival, reason: str) -> None:
        pass

    def stepped(self, step: Step, server: Server) -> None:
        pass

    def evaluated(self, row: dict[str, float]) -> None:
        row["grad_norm"] = float(self._task.mean_gradient(self._model).norm())
