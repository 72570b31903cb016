"""Differential privacy on the client: clip, add Gaussian noise, and account for the uploads that were really made.

**The mechanism.** Before an upload a client scales its update to norm at most `clip` and adds N(0, (noise_multiplier *
clip)^2) to every number of it. The server, and whoever reads models or tables, sees nothing else of its data.

**The guarantee.** For each client separately, against everybody who sees its uploads, the server included: its
u uploads together are (epsilon, delta)-differentially private, where two data sets of the client are neighbours if one
of them is empty and its updates zero (zero-out adjacency; for replacing the client's data by any other data, the
sensitivity is twice `clip`: ask with half the noise multiplier). Later models depend on earlier uploads, which adaptive
composition of Rényi divergences allows. What the server does with an upload is post-processing and free: ACE may keep
a noisy update in its table and step on it a thousand times. A further upload is not free, so a fast client spends more
than a slow one, and each has its own epsilon. Every update that left the client counts,
whatever became of it: refused, too late, or lost on the way. Where nobody can tell whether one left (its task expired,
the node or the server died), it counts too.

**What it rests on.** When and how often a client uploads must not depend on its data (task times are properties of its
machine), and noise is drawn afresh for each upload. The floating-point Gaussian is taken for the ideal one. Choosing
a learning rate by looking at several runs spends the sum of them.

**`sample_rate`** below 1 is for clients that train by DP-SGD (one step per upload, on a Poisson sample of their
examples, every example's gradient clipped and noise added to the sum, as Opacus does it): then neighbours differ in
one example of the client, and sampling amplifies. `privatised` does not do that; for it the rate is 1.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from acefl.core import rng as keyed
from acefl.core.errors import AceflError, require
from acefl.core.types import Vector
from acefl.tasks.base import Evaluation, Task, client_names

if TYPE_CHECKING:
    from acefl.runs.record import Run

_NOISE_STREAM = 81
_ORDERS = [1 + 10 ** (x / 8) for x in range(-24, 33)]  # from 1.001 to 10,001, each a third more than the last, less 1


def privatise(update: Vector, *, clip: float, noise_multiplier: float) -> Vector:
    """What a real client may send instead of its update; the noise comes from the operating system's entropy.

    Args:
        update: The update to protect.
        clip: Norm it is scaled down to.
        noise_multiplier: Standard deviation of the noise, in units of `clip`.
    """
    _check(clip, noise_multiplier)
    generator = torch.Generator(update.device)
    generator.seed()
    noise = torch.randn(update.shape, generator=generator, device=update.device, dtype=update.dtype)
    return _clipped(update.unsqueeze(0), clip)[0] + noise * (noise_multiplier * clip)


def privatised(task: Task, *, clip: float, noise_multiplier: float, seed: int = 0) -> Privatised:
    """The task with every client clipping its updates and adding noise, drawn by key: for simulations only.

    Args:
        task: Whose clients add noise.
        clip: Norm that updates are scaled down to.
        noise_multiplier: Standard deviation of the noise, in units of `clip`.
        seed: Of the noise.
    """
    _check(clip, noise_multiplier)
    return Privatised(task, clip, noise_multiplier, seed)


class Privatised:
    """A task whose clients send private updates; models are evaluated as before.

    Args:
        task: Whose clients add noise.
        clip: Norm that updates are scaled down to.
        noise_multiplier: Standard deviation of the noise, in units of `clip`.
        seed: Of the noise.
    """

    def __init__(self, task: Task, clip: float, noise_multiplier: float, seed: int) -> None:
        self._task, self._clip, self._noise_multiplier, self._seed = task, clip, noise_multiplier, seed
        self.clients, self.samples, self.names = task.clients, task.samples, client_names(task)
        self.objective, self.batch_limit = task.objective, task.batch_limit

    def describe(self) -> dict[str, Any]:
        """What the task says of itself, and under `privacy` what is added."""
        own = {"clip": self._clip, "noise_multiplier": self._noise_multiplier, "seed": self._seed}
        return {**self._task.describe(), "privacy": own}

    def initial(self) -> Vector:
        """The task's own: it depends on nobody's data."""
        return self._task.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        """By the task itself: scores are for whoever simulates, and get no noise."""
        return self._task.evaluate(model)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """The task's, each clipped, with noise from its key: another visit draws other noise."""
        updates = self._task.updates(models, clients, keys)
        noise_keys = [keyed.key(self._seed, _NOISE_STREAM, k) for k in keys]
        noise = keyed.normal(noise_keys, updates.shape[1], updates.device)
        return _clipped(updates, self._clip) + noise * (self._noise_multiplier * self._clip)


def _clipped(rows: torch.Tensor, clip: float) -> torch.Tensor:
    """Each row scaled to norm at most `clip`; a zero row stays one."""
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (clip / norms.clamp(min=clip))


def epsilon(uploads: int, *, noise_multiplier: float, sample_rate: float = 1.0, delta: float = 1e-5) -> float:
    """What a client's uploads cost it, by Opacus' Rényi accountant; see the guarantee above.

    Args:
        uploads: How many the client made.
        noise_multiplier: As in `privatise`.
        sample_rate: 1, or the share of examples in each step of DP-SGD.
        delta: The delta of the guarantee.
    """
    require(uploads >= 0, f"uploads is {uploads}; allowed: at least 0")
    _check(1.0, noise_multiplier)
    require(0.0 < sample_rate <= 1.0, f"sample_rate is {sample_rate}; allowed: above 0 and at most 1")
    require(0.0 < delta < 1.0, f"delta is {delta}; allowed: above 0 and below 1")
    if uploads == 0:
        return 0.0
    return _accounted(uploads, noise_multiplier, sample_rate, delta) if noise_multiplier else math.inf


@lru_cache(maxsize=4096)
def _accounted(uploads: int, noise_multiplier: float, sample_rate: float, delta: float) -> float:
    if find_spec("opacus") is None:
        raise AceflError("accounting needs Opacus: pip install 'acefl[privacy]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus' own imports, and that another order might give a smaller epsilon
        from opacus.accountants import RDPAccountant

        accountant = RDPAccountant()
        accountant.history = [(noise_multiplier, sample_rate, uploads)]
        return max(0.0, float(accountant.get_epsilon(delta, alphas=_ORDERS)))


def epsilon_per_client(
    run: Run, *, noise_multiplier: float, sample_rate: float = 1.0, delta: float = 1e-5
) -> list[float]:
    """Every client's epsilon after a run, by the updates that left it or may have (`uploads` in `run.clients`).

    Args:
        run: A finished run.
        noise_multiplier: As in `privatise`.
        sample_rate: 1, or the share of examples in each step of DP-SGD.
        delta: The delta of the guarantee.
    """
    require(
        all("uploads" in client for client in run.clients),
        "the run's record does not say how many updates left each client: it was made by an earlier acefl",
    )
    return [
        epsilon(int(client["uploads"]), noise_multiplier=noise_multiplier, sample_rate=sample_rate, delta=delta)
        for client in run.clients
    ]


def _check(clip: float, noise_multiplier: float) -> None:
    require(math.isfinite(clip) and clip > 0, f"clip is {clip}; allowed: a finite number above 0")
    fine = math.isfinite(noise_multiplier) and noise_multiplier >= 0
    require(fine, f"noise_multiplier is {noise_multiplier}; allowed: a finite number of at least 0")
