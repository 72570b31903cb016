"""The norm of the true gradient, for tasks whose own evaluation does not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acefl.core.errors import require
from acefl.probes.error_terms import ExactGradients, task_of
from acefl.runs.observers import Observer

if TYPE_CHECKING:
    from acefl.core.server import Server
    from acefl.core.types import Step
    from acefl.runs.observers import RunInProgress


class TrueGradient(Observer):
    """Adds `grad_norm` to every evaluation: the norm of the gradient of the mean of all clients' losses.

    On a real fleet an evaluation may be over when the model has moved on: then it is left out.
    """

    def started(self, run: RunInProgress) -> None:
        task = task_of(run, "the true gradient")
        require(
            isinstance(task, ExactGradients),
            f"task {task.describe().get('name')} offers no full gradients, so no true one",
        )
        self._task: ExactGradients = task  # type: ignore[assignment]
        self._model = run.server.model  # changed in place, so always the latest
        self._version = run.server.version

    def stepped(self, step: Step, server: Server) -> None:
        self._version = step.version

    def evaluated(self, row: dict[str, float]) -> None:
        if row["step"] == self._version:
            row["grad_norm"] = float(self._task.mean_gradient(self._model).norm())
