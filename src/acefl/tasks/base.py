"""What a task is to the rest of the library: models in, updates and evaluations out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch

from acefl.core import notebook
from acefl.core.metrics import HELD_OUT, LARGER, Better, base, declared, direction
from acefl.core.types import Vector


@dataclass(frozen=True)
class Evaluation:
    """How good a model is: overall metrics, and every client's loss, accuracy and other scores, where there are such.

    Each client's score is there twice where it can be: on the data that the client trains on, and on data that nobody
    trains on (held out). A client of which there is nothing to judge by has NaN, and the means in `metrics` leave it
    out; that of a model that has diverged is NaN or infinite.

    Args:
        metrics: Numbers by name, such as accuracy and loss.
        client_loss: One per client; None where nobody knows.
        client_accuracy: One per client; None where there is none.
        heldout_loss: The same on data that nobody trains on.
        heldout_accuracy: The same.
        answered: Whose scores these are, where clients were asked; None: everybody's.
        client_metrics: Other scores of every client: `f1` on the data that it trains on, `heldout_f1` on others.
        better: Of metrics that are not acefl's own, which way is better: `{"f1": "larger"}`, or `"smaller"`.
    """

    metrics: dict[str, float]
    client_loss: torch.Tensor | None = None  # on the data that the client trains on
    client_accuracy: torch.Tensor | None = None  # the same
    heldout_loss: torch.Tensor | None = None
    heldout_accuracy: torch.Tensor | None = None
    answered: frozenset[int] | None = None  # whose scores these are, where clients were asked; None: everybody's
    client_metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    better: Better = field(default_factory=dict)

    def __post_init__(self) -> None:
        declared(self.better)

    def per_client(self) -> dict[str, torch.Tensor]:
        """Columns of `run.clients`, where there are such scores."""
        columns = {
            "accuracy": self.client_accuracy,
            "loss": self.client_loss,
            "heldout_accuracy": self.heldout_accuracy,
            "heldout_loss": self.heldout_loss,
            **self.client_metrics,
        }
        return {name: values for name, values in columns.items() if values is not None}


def scores_by_speed(found: Evaluation, slow: torch.Tensor, fast: torch.Tensor) -> dict[str, float]:
    """Scores of the slowest and the fastest clients and of the worst served, for a row of `run.history`.

    Clients without a score are left out, and counted: `unscored_clients`, `heldout_unscored_clients`, of other scores
    than loss and accuracy `unscored_f1`, `heldout_unscored_f1`.
    """
    row: dict[str, float] = {}
    for name, values in found.per_client().items():
        held, score = (HELD_OUT if name.startswith(HELD_OUT) else ""), base(name)
        way = direction(score, found.better)
        # then a NaN is no divergence
        sound = found.answered is not None or math.isfinite(found.metrics.get(f"{held}client_loss", math.nan))
        scored = ~values.isnan() if sound else torch.ones_like(values, dtype=torch.bool)
        if not scored.any():
            continue
        everybody = bool(scored.all())  # then nobody is picked out, which takes longer than the means
        for which, clients in (("slow", slow), ("fast", fast)):
            own = values[clients] if everybody else values[clients][scored[clients]]
            row[f"{held}{which}_{score}"] = float(own.mean())
        if way is not None:
            worst = torch.min if way == LARGER else torch.max
            row[f"{held}worst_{score}"] = float(worst(values if everybody else values[scored]))
        if not everybody:
            whose = score if name in found.client_metrics else "clients"
            row[f"{held}unscored_{whose}"] = int((~scored).sum())
    return row


class Shown:
    """How a task looks at a prompt and in a notebook: by what it says of itself."""

    clients: int

    def describe(self) -> dict[str, Any]:
        """What made this task, as plain JSON: its name and arguments."""
        raise NotImplementedError

    def __repr__(self) -> str:
        described = self.describe()
        return f"<task {described.get('name', type(self).__name__)} with {self.clients} clients>"

    def _repr_html_(self) -> str:
        described = self.describe()
        rest = {name: value for name, value in described.items() if name not in ("name", "clients")}
        return notebook.pairs(f"task {described.get('name', type(self).__name__)}", {"clients": self.clients, **rest})


class Task(Protocol):
    """A model, its data split over clients, and the work a client does on it.

    A task whose clients have names also has `names`, one per client: see `client_names`.
    """

    clients: int
    samples: list[int]  # per client
    objective: str  # the metric by which a learning rate is chosen; smaller is better, unless evaluations say other
    batch_limit: int  # how many client updates to compute in one call at most

    def describe(self) -> dict[str, Any]:
        """What made this task, as plain JSON: its name and arguments."""
        ...

    def initial(self) -> Vector:
        """The model everybody starts from."""
        ...

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """Row k: what clients[k] sends after working on models[k], with randomness from keys[k] alone.

        The models are borrowed: other tasks may start from the same ones, so nothing is written into them.
        """
        ...

    def evaluate(self, model: Vector) -> Evaluation:
        """How good the model is, and each client's scores where there are such."""
        ...


class SharingTask(Task, Protocol):
    """A task that computes faster what clients do who start from the same model."""

    shared_limit: int  # how many clients to compute in one call of `shared_updates` at most; 0: none

    def shared_updates(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        """`updates` where all clients start from this model; equal within rounding."""
        ...


def sharing(task: Task) -> SharingTask | None:
    """The task, if it computes clients on one model together. Its class is asked, as in `for_run`: one made of such a
    class that has `updates` of its own does something else."""
    for kind in type(task).__mro__:
        if "shared_updates" in vars(kind):
            return cast(SharingTask, task) if cast(SharingTask, task).shared_limit > 0 else None
        if "updates" in vars(kind):
            return None
    return None


def client_names(task: Task | None) -> list[str] | None:
    """What the task's clients are called, in order; None where they have numbers alone."""
    names = getattr(task, "names", None)
    return None if names is None else list(names)


def for_run(task: Task, updates: float, compiled: bool | None, alike: bool) -> Task:
    """The task as a run of about so many updates computes it, where it has several strategies: its class has `for_run`.

    The class is asked, since a task around another one may hand on what it does not know itself: that would leave the
    outer one out.
    """
    choose: Callable[[Task, float, bool | None, bool], Task] | None = getattr(type(task), "for_run", None)
    return task if choose is None else choose(task, updates, compiled, alike)
