"""The paper's error terms of single steps: how wrong an update is, and why.

u - grad F(w) = A + B + C, with w the model the step was made from and

    A = u - ubar                      sampling noise (with a quantised table also its rounding)
    B = ubar - grad F(w_stale)        participation bias
    C = grad F(w_stale) - grad F(w)   delay

ubar is u with every contribution's stochastic gradient replaced by the full local gradient at the very model it was
computed on. Of CA²FL only the contributions of the last buffer: the paper takes its cached terms as fixed, so the noise
that is left in them counts as bias. With every contribution replaced, cached ones too, its terms are recorded as
`noise_all` and `bias_all`: comparable with ACE's, whose cached gradients the paper does replace.

grad F(w_stale) is the mean over all clients of their full gradients, each at the model of its latest accepted
contribution (a client that has not contributed yet: at the model everybody was sent first); F is the mean of the
clients' losses, every client counting the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.rule import Upload
from acefl.core.types import Arrival, State, Step, Vector
from acefl.probes.shadow import Shadow, Weighed
from acefl.runs.observers import Observer

if TYPE_CHECKING:
    from acefl.core.server import Server
    from acefl.runs.observers import RunInProgress
    from acefl.tasks.base import Task

GRADIENTS = ("auto", "full", "sampled")
_PROBE_STREAM = 21
_CHEAP = 1e10  # samples times parameters of all clients' full gradients
_SPARE_MODELS = 64


@runtime_checkable
class ExactGradients(Protocol):
    """What a task offers where full local gradients are affordable."""

    def client_gradients(self, models: torch.Tensor, clients: list[int]) -> torch.Tensor: ...

    def mean_gradient(self, model: Vector) -> Vector: ...


class ErrorTerms(Observer):
    """Measures A, B and C at the first step after every `every` accepted arrivals, from the run's own contributions.

    `records` has one row per measured step: the squared norms `noise`, `bias` and `delay`, that of their sum `mse`,
    those of the update and of the true gradient, cosines with the true gradient, `squared_weights` (the sum over the
    contributions that are replaced in ubar: what averaging leaves of the noise), `heterogeneity` (mean squared distance
    of clients' gradients from their mean), `drift` (mean squared distance of w from the stale models), and the
    `seconds` it took. `run.history` gets the means since the evaluation before, and `probe_seconds`, the probe's whole
    cost so far.

    gradients: `full` takes every client's whole data, which the task must offer. `sampled` draws `replicates`
    minibatches per client instead: estimates without bias, with 95 % intervals in `noise_low`, `noise_high` and so on.
    Where a client's work is more than one gradient (local steps), its expected update then takes the place of its
    gradient. `auto` is `full` where the task offers it and it is cheap.
    """

    def __init__(
        self, every: int = 100, *, gradients: str = "auto", replicates: int = 8, slots: int | None = None
    ) -> None:
        require(every >= 1, f"every is {every}; allowed: at least 1")
        one_of("gradients", gradients, GRADIENTS)
        require(replicates >= 3, f"replicates is {replicates}; allowed: at least 3")
        self.every, self.replicates = every, replicates
        self._gradients_wanted = gradients
        self._slots = slots
        self.records: list[dict[str, float]] = []
        self.seconds = 0.0
        self._shown = 0
        self._due = every
        self._gradients: dict[tuple[int, int], Vector] = {}

    def started(self, run: RunInProgress) -> None:
        task = task_of(run, "an error term")
        require(
            run.method.uploads is not Upload.MODEL,
            "the error terms are those of a sum of updates; this method mixes models",
        )
        whole = run.method.inner is run.method
        require(whole, "the error terms are of whole updates; this method clips them: measure the method within")
        self._task, self._versions_out = task, run.fleet.versions_out
        model = run.server.model
        self._full = _full_gradients(task, model, self._gradients_wanted)
        self._shadow = Shadow(run.method, task.clients, task.samples, model, self._slots)
        self._cache_is_history = run.method.cache_is_history
        self._models = {0: model.clone()}
        self._most_models = _SPARE_MODELS
        self._stale = [0] * task.clients
        self._arrivals = 0

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if reason:
            return
        began = time.perf_counter()
        self._shadow.absorb(arrival)
        self._stale[arrival.client] = arrival.trained_on
        self._arrivals += 1
        self.seconds += time.perf_counter() - began

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self._shadow.dispatched(clients, version)

    def lost(self, client: int) -> None:
        self._shadow.lost(client)

    def stepped(self, step: Step, server: Server) -> None:
        if not step.stepped:
            return
        began = time.perf_counter()
        if step.arrivals != self._arrivals:
            raise InvalidInput("a probe must watch a run from its start: it cannot join one that is resumed")
        self._shadow.step()
        if step.arrivals >= self._due:
            self._due = (step.arrivals // self.every + 1) * self.every
            row = {"step": float(step.version), "arrival": float(step.arrivals), "time": step.time}
            self.records.append(row | self._measure(server) | {"seconds": time.perf_counter() - began})
        self._models[server.version] = server.model.clone()
        if len(self._models) > self._most_models:
            self._let_models_go(server.version)
        self.seconds += time.perf_counter() - began

    def evaluated(self, row: dict[str, float]) -> None:
        new = self.records[self._shown :]
        self._shown = len(self.records)
        if new:
            names = [name for name in new[0] if name not in ("step", "arrival", "time", "seconds")]
            row |= {name: math.fsum(record[name] for record in new) / len(new) for name in names}
        row["probe_seconds"] = self.seconds

    @property
    def models_kept(self) -> int:
        """How many versions of the model the probe holds in memory now."""
        return len(self._models)

    def state_dict(self) -> State:
        return {
            "records": [dict(record) for record in self.records],
            "seconds": self.seconds,
            "shown": self._shown,
            "due": self._due,
            "shadow": self._shadow.state_dict(),
            "models": {str(version): model.clone() for version, model in self._models.items()},
            "stale": list(self._stale),
            "arrivals": self._arrivals,
        }

    def load_state_dict(self, state: State) -> None:
        self.records = [dict(record) for record in state["records"]]
        self.seconds, self._shown, self._due = float(state["seconds"]), int(state["shown"]), int(state["due"])
        self._shadow.load_state_dict(state["shadow"])
        device = self._models[0].device
        self._models = {int(version): model.to(device) for version, model in state["models"].items()}
        self._stale, self._arrivals = list(state["stale"]), int(state["arrivals"])

    def _let_models_go(self, now: int) -> None:
        """Keep the models that clients work on, that contributions still in the rule were computed on, or that are some
        client's latest."""
        self._shadow.sweep()
        needed = self._versions_out() | self._shadow.versions() | {*self._stale, now}
        self._models = {version: model for version, model in self._models.items() if version in needed}
        self._most_models = 2 * len(self._models) + _SPARE_MODELS

    def _measure(self, server: Server) -> dict[str, float]:
        update = server.direction
        model = self._models[server.version - 1]
        made_of = self._shadow.weights(update)
        means = {"": _Mean(torch.zeros_like(update, dtype=torch.float64), made_of)}
        if self._cache_is_history:
            means = {"": self._given_the_cache(server, update, made_of), "_all": means[""]}
        moved = torch.stack([self._models[version] for version in self._stale]).sub_(model)
        row = {
            "squared_weights": math.fsum(part.weight**2 for part in means[""].parts),
            "squared_update": float(update.double().square().sum()),
            "drift": float(moved.square_().sum(dtype=torch.float64)) / len(moved),
        }
        if self._full:
            return row | self._exact(update.double(), model, means)
        return row | self._sampled(update.double(), server.version - 1, means, self.replicates)

    @staticmethod
    def _given_the_cache(server: Server, update: Vector, made_of: list[Weighed]) -> _Mean:
        """The cache before the buffer is fixed, and so is the update less what the buffer's own rows make of it."""
        fresh = [part for part in made_of if part.fresh]
        fixed = update.double().clone()
        for part in fresh:
            fixed.sub_(server.rule.table.row(part.client).double(), alpha=part.weight)  # type: ignore[attr-defined]
        return _Mean(fixed, fresh)

    def _exact(self, update: Vector, model: Vector, means: dict[str, _Mean]) -> dict[str, float]:
        parts = [part for mean in means.values() for part in mean.parts]
        self._compute([*((part.client, part.trained_on) for part in parts), *enumerate(self._stale)])
        expected = {which: mean.fixed.clone() for which, mean in means.items()}
        for which, mean in means.items():
            if mean.parts:  # an update may be empty: nobody in ACED's active set
                weights = torch.tensor([part.weight for part in mean.parts], dtype=torch.float64, device=update.device)
                pairs = [(part.client, part.trained_on) for part in mean.parts]
                expected[which] += weights @ torch.stack([self._gradients[pair] for pair in pairs]).double()
        own = torch.stack([self._gradients[pair] for pair in enumerate(self._stale)]).double()
        stale = own.mean(0)
        truth: Vector = self._task.mean_gradient(model).double()  # type: ignore[attr-defined]
        terms = {"delay": stale - truth, "mse": update - truth}
        for which, mean_update in expected.items():
            terms |= {f"noise{which}": update - mean_update, f"bias{which}": mean_update - stale}
        row = {name: float(term.square().sum()) for name, term in terms.items()}
        row |= {f"cos_{name}": _cosine(terms[name], truth) for name in ("noise", "bias", "delay")}
        row |= {"cos_update": _cosine(update, truth), "squared_gradient": float(truth.square().sum())}
        return row | {"heterogeneity": float((own - stale).square().sum()) / len(own)}

    def _compute(self, pairs: list[tuple[int, int]]) -> None:
        """Every pair's full gradient of a client at a version; those of the last measurement are not computed again."""
        wanted = list(dict.fromkeys(pairs))
        known = {pair: self._gradients[pair] for pair in wanted if pair in self._gradients}
        new = [pair for pair in wanted if pair not in known]
        if new:
            models = torch.stack([self._models[version] for _, version in new])
            rows: torch.Tensor = self._task.client_gradients(  # type: ignore[attr-defined]
                models, [client for client, _ in new]
            )
            known |= zip(new, rows.unbind(0), strict=True)
        self._gradients = known

    def _sampled(self, update: Vector, now: int, means: dict[str, _Mean], replicates: int) -> dict[str, float]:
        """Unbiased estimates from independent replicates of ubar, grad F(w_stale) and grad F(w).

        Within one replicate a client uses one minibatch at all its models, so that differences are between models, not
        between minibatches.
        """
        clients, count = len(self._stale), 2 + len(means)
        weights: dict[tuple[int, int], list[float]] = {}  # of grad F(w_stale), grad F(w), and each ubar
        for k, mean in enumerate(means.values(), start=2):
            for part in mean.parts:
                weights.setdefault((part.client, part.trained_on), [0.0] * count)[k] += part.weight
        for client, version in enumerate(self._stale):
            weights.setdefault((client, version), [0.0] * count)[0] += 1.0 / clients
            weights.setdefault((client, now), [0.0] * count)[1] += 1.0 / clients
        pairs = list(weights)
        sums = torch.zeros(count, replicates, update.numel(), dtype=torch.float64, device=update.device)
        squares = 0.0
        for replicate in range(replicates):
            stream = (_PROBE_STREAM, self._arrivals, replicate)
            for start in range(0, len(pairs), self._task.batch_limit):
                some = pairs[start : start + self._task.batch_limit]
                models = torch.stack([self._models[version] for _, version in some])
                keys = [keyed.key(*stream, client) for client, _ in some]
                rows = self._task.updates(models, [client for client, _ in some], keys).double()
                for k in range(count):
                    share = torch.tensor([weights[pair][k] for pair in some], dtype=torch.float64, device=rows.device)
                    sums[k, replicate].add_(share @ rows)
                mine = torch.tensor([weights[pair][0] for pair in some], dtype=torch.float64, device=rows.device)
                squares += float(mine @ rows.square().sum(1)) / replicates
        stale, truth, *moving = sums
        terms = {"delay": stale - truth, "mse": update - truth}
        for (which, mean), part_of_it in zip(means.items(), moving, strict=True):
            expected = part_of_it + mean.fixed
            terms |= {f"noise{which}": update - expected, f"bias{which}": expected - stale}
        row: dict[str, float] = {}
        for name, term in terms.items():
            row[name], half = squared_norm(term)
            row |= {f"{name}_low": row[name] - half, f"{name}_high": row[name] + half}
        row["squared_gradient"] = squared_norm(truth)[0]
        terms["update"] = update.expand_as(truth)
        for name in ("noise", "bias", "delay", "update"):
            below = squared_norm(terms[name])[0] * row["squared_gradient"]
            row[f"cos_{name}"] = _crossed(terms[name], truth) / math.sqrt(below) if below > 0 else math.nan
        return row | {"heterogeneity": squares - squared_norm(stale)[0]}


def task_of(run: RunInProgress, wanted: str) -> Task:
    """The run's task, with all clients' data; one clear line where the data are with the clients alone."""
    require(run.task is not None, f"{wanted} takes all clients' data, which are not here; allowed: runs with a task")
    assert run.task is not None
    return run.task


class _Mean(NamedTuple):
    """ubar, as what is fixed and the contributions whose gradients take their full values."""

    fixed: Vector
    parts: list[Weighed]


def _full_gradients(task: Task, model: Vector, wanted: str) -> bool:
    """Whether to use the task's full gradients; tried at once, since what is refused should be refused at the start."""
    offered = isinstance(task, ExactGradients)
    if wanted == "sampled" or (wanted == "auto" and not (offered and sum(task.samples) * model.numel() <= _CHEAP)):
        return False
    require(offered, f"task {task.describe().get('name')} offers no full gradients; allowed: gradients='sampled'")
    try:
        task.mean_gradient(model)  # type: ignore[attr-defined]
    except InvalidInput:
        if wanted == "full":
            raise
        return False
    return True


def squared_norm(replicates: torch.Tensor) -> tuple[float, float]:
    """From independent unbiased estimates of a vector, one per row: an unbiased estimate of its squared norm, and half
    the width of a 95 % interval around it (leave-one-out jackknife)."""
    from scipy.stats import t as student

    count = len(replicates)
    gram = (replicates @ replicates.T).double()
    total, own, with_all = float(gram.sum()), gram.diagonal(), gram.sum(1)
    estimate = (total - float(own.sum())) / (count * (count - 1))
    without = (total - 2 * with_all + own) - (own.sum() - own)
    without /= (count - 1) * (count - 2)
    error = math.sqrt(float((without - without.mean()).square().sum()) * (count - 1) / count)
    return estimate, float(student.ppf(0.975, count - 1)) * error


def _crossed(left: torch.Tensor, right: torch.Tensor) -> float:
    """An unbiased estimate of an inner product from replicates of both: no replicate is paired with itself."""
    count = len(left)
    gram = left @ right.T
    return float(gram.sum() - gram.diagonal().sum()) / (count * (count - 1))


def _cosine(left: Vector, right: Vector) -> float:
    below = float(left.norm() * right.norm())
    return float(left @ right) / below if below > 0 else math.nan
