"""Anybody's `nn.Module`, loss and per-client data as a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, default_collate

from acefl import keyed
from acefl.errors import InvalidInput, one_of, require
from acefl.tasks.base import Evaluation
from acefl.tasks.compute import Batch, Gradients, OneByOne, Together
from acefl.types import Vector

COMPUTE = ("auto", "one-by-one", "together")
_TOGETHER_UP_TO = 200_000  # parameters: above this a single gradient fills a CPU core and batching gains nothing
_EVALUATION_BATCH = 4096

ClientData = Dataset[Any] | tuple[Any, torch.Tensor]


@dataclass(frozen=True)
class LocalSteps:
    """Local work of several optimizer steps; the client sends w_start - w_end.

    `optimizer` makes a fresh torch optimizer from parameters, e.g. `functools.partial(torch.optim.SGD, lr=0.05)`.
    """

    steps: int
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps is {self.steps}; allowed: at least 1")


class TorchTask:
    """A model, a loss that averages over its batch, and every client's data.

    clients: one entry each, a `(inputs, targets)` pair of tensors (inputs may be a dict of tensors) or a map-style
    Dataset of `(input, target)`. A client's work is one minibatch gradient, or `local=LocalSteps(...)`.
    compute: `one-by-one`, `together` (many client models in one call), or `auto`.
    """

    objective = "client_loss"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        clients: Sequence[ClientData],
        *,
        test: ClientData | None = None,
        batch: int = 20,
        local: LocalSteps | None = None,
        ridge: float = 0.0,
        device: str | torch.device = "cpu",
        compute: str = "auto",
        description: dict[str, Any] | None = None,
    ) -> None:
        require(len(clients) >= 1, "clients is empty; allowed: at least one client's data")
        require(batch >= 1, f"batch is {batch}; allowed: at least 1")
        one_of("compute", compute, COMPUTE)
        refuse_running_statistics(model)
        self.device = torch.device(device)
        self.clients = len(clients)
        self._description = description or {"name": "torch", "model": type(model).__name__, "clients": len(clients)}
        self._module = model.to(self.device).train()
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        require(bool(self._parameters), "the model has no trainable parameters")
        self._shapes = [p.shape for p in self._parameters]
        self._sizes = [p.numel() for p in self._parameters]
        self._flat = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._initial = self._flat.clone()
        for parameter, view in zip(self._parameters, self._views(self._flat), strict=True):
            parameter.data = view
        self._loss = loss
        self._batch = batch
        self._local = local
        self._ridge = ridge
        self._load(clients, test)
        self.batch_limit = max(1, min(64, 2**24 // len(self._flat)))
        self._random_forward = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules())
        self.compute = self._choose(compute)

    def _load(self, clients: Sequence[ClientData], test: ClientData | None) -> None:
        """Put all data on the device once, clients one after another, so that a minibatch is a gather."""
        pairs = [_tensors(data) for data in clients]
        self.samples = [len(targets) for _, targets in pairs]
        for client, count in enumerate(self.samples):
            require(count >= 1, f"client {client} has no data; allowed: at least one sample each")
        self._inputs = tree_map(lambda *parts: torch.cat(parts).to(self.device), *[inputs for inputs, _ in pairs])
        self._targets = torch.cat([targets for _, targets in pairs]).to(self.device)
        counts = torch.tensor(self.samples, device=self.device)
        self._counts = counts
        self._offsets = counts.cumsum(0) - counts
        self._owner = torch.repeat_interleave(torch.arange(self.clients, device=self.device), counts)
        self._test = tree_map(lambda t: t.to(self.device), _tensors(test)) if test is not None else None

    def _choose(self, compute: str) -> Gradients:
        together = self._local is None and not self._random_forward
        if compute == "together":
            require(together, "compute='together' allows neither local steps nor dropout: use 'one-by-one'")
            return Together(self._functional_loss)
        if compute == "auto" and together and len(self._flat) <= _TOGETHER_UP_TO:
            candidate = Together(self._functional_loss)
            try:
                candidate(*self._minibatches(self._initial.unsqueeze(0), [0], [0]))
                return candidate
            except Exception:  # whatever a user's module does that functorch cannot trace
                pass
        return OneByOne(self._gradient)

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def initial(self) -> Vector:
        return self._initial.clone()

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        if self._local is not None:
            rows = [self._train(model, client, k) for model, client, k in zip(models, clients, keys, strict=True)]
            return torch.stack(rows)
        if self._random_forward:
            rows = [self._seeded(model, client, k) for model, client, k in zip(models, clients, keys, strict=True)]
            gradients = torch.stack(rows)
        else:
            gradients = self.compute(*self._minibatches(models, clients, keys))
        return gradients.add_(models, alpha=self._ridge) if self._ridge else gradients

    def _minibatches(
        self, models: torch.Tensor, clients: list[int], keys: list[int], steps: int = 1
    ) -> tuple[torch.Tensor, Batch, torch.Tensor]:
        index = torch.tensor(clients, device=self.device)
        rows = keyed.choose(keys, steps * self._batch, self._counts[index]) + self._offsets[index].unsqueeze(1)
        return models, tree_map(lambda t: t[rows], self._inputs), self._targets[rows]

    def _views(self, flat: Vector) -> list[torch.Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def _functional_loss(self, flat: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(self._names, self._views(flat), strict=True))
        output = functional_call(self._module, parameters, _arguments(inputs), _keywords(inputs))
        return self._loss(output, targets)

    def _output(self, inputs: Batch) -> torch.Tensor:
        return self._module(*_arguments(inputs), **_keywords(inputs))  # type: ignore[no-any-return]

    def _gradient(self, model: Vector, inputs: Batch, targets: torch.Tensor) -> Vector:
        self._flat.copy_(model)
        gradients = torch.autograd.grad(self._loss(self._output(inputs), targets), self._parameters)
        return torch.cat([g.reshape(-1) for g in gradients])

    def _seeded(self, model: Vector, client: int, key: int) -> Vector:
        """One gradient whose forward pass is random (dropout): torch's own generator is seeded by the task's key."""
        models, inputs, targets = self._minibatches(model.unsqueeze(0), [client], [key])
        with self._keyed_generator(key):
            return self._gradient(models[0], tree_map(lambda t: t[0], inputs), targets[0])

    def _train(self, model: Vector, client: int, key: int) -> Vector:
        assert self._local is not None
        _, inputs, targets = self._minibatches(model.unsqueeze(0), [client], [key], self._local.steps)
        self._flat.copy_(model)
        optimizer = self._local.optimizer(self._parameters)
        with self._keyed_generator(key):
            for step in range(self._local.steps):
                part = slice(step * self._batch, (step + 1) * self._batch)
                loss = self._loss(self._output(tree_map(lambda t, p=part: t[0, p], inputs)), targets[0, part])
                if self._ridge:
                    loss = loss + 0.5 * self._ridge * sum((p * p).sum() for p in self._parameters)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        optimizer.zero_grad()
        return model - self._flat

    def _keyed_generator(self, key: int) -> Any:
        devices = [self.device] if self.device.type == "cuda" else []
        scope = torch.random.fork_rng(devices=devices, enabled=self._random_forward)
        if self._random_forward:
            return _Seeded(scope, key)
        return scope

    def evaluate(self, model: Vector) -> Evaluation:
        self._flat.copy_(model)
        self._module.eval()
        try:
            losses, hits = self._per_sample(self._inputs, self._targets)
            test = self._per_sample(*self._test) if self._test is not None else (losses, hits)
        finally:
            self._module.train()
        penalty = 0.5 * self._ridge * float(model @ model) if self._ridge else 0.0
        client_loss = self._per_client(losses) + penalty
        client_accuracy = self._per_client(hits) if hits is not None else None
        metrics = {"loss": float(test[0].mean()), "client_loss": float(client_loss.mean())}
        if test[1] is not None:
            metrics["accuracy"] = float(test[1].mean())
        return Evaluation(metrics, client_loss, client_accuracy)

    def _per_client(self, values: torch.Tensor) -> torch.Tensor:
        totals = torch.zeros(self.clients, dtype=torch.float64, device=self.device)
        return (totals.index_add_(0, self._owner, values.double()) / self._counts).cpu()

    @torch.no_grad()
    def _per_sample(self, inputs: Batch, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Every sample's own loss, and whether it is classified right where that means something."""
        losses, hits = [], []
        for start in range(0, len(targets), _EVALUATION_BATCH):
            part = slice(start, start + _EVALUATION_BATCH)
            output, target = self._output(tree_map(lambda t, p=part: t[p], inputs)), targets[part]
            losses.append(vmap(lambda o, t: self._loss(o.unsqueeze(0), t.unsqueeze(0)))(output, target))
            if output.dim() == 2 and target.dim() == 1 and not target.is_floating_point():
                hits.append((output.argmax(1) == target).float())
        return torch.cat(losses), torch.cat(hits) if hits else None


class _Seeded:
    """A forked generator scope that starts from a key."""

    def __init__(self, scope: Any, key: int) -> None:
        self._scope, self._key = scope, key

    def __enter__(self) -> None:
        self._scope.__enter__()
        torch.manual_seed(self._key >> 1)

    def __exit__(self, *details: object) -> None:
        self._scope.__exit__(*details)


def refuse_running_statistics(model: nn.Module) -> None:
    """Gradients carry no running statistics, so a model that keeps them would be evaluated with what nobody updated."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise InvalidInput(
                f"layer {name or type(module).__name__!r} keeps BatchNorm running statistics, which updates do not carry; "
                "allowed: GroupNorm, or batch statistics: acefl.tasks.batch_statistics(model)"
            )


def batch_statistics(model: nn.Module) -> nn.Module:
    """The same model with every BatchNorm normalising by its current batch, in training and evaluation alike."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


def _tensors(data: ClientData) -> tuple[Any, torch.Tensor]:
    if isinstance(data, tuple):
        inputs, targets = data
        sizes = {len(leaf) for leaf in tree_leaves(inputs)} | {len(targets)}
        require(len(sizes) == 1, f"a client's inputs and targets differ in length: {sorted(sizes)}")
        return inputs, targets
    rows = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
    require(bool(rows), "a client has no data; allowed: at least one sample each")
    inputs, targets = default_collate(rows)
    return inputs, torch.as_tensor(targets)


def _arguments(inputs: Batch) -> tuple[Any, ...]:
    return () if isinstance(inputs, dict) else (inputs,)


def _keywords(inputs: Batch) -> dict[str, Any]:
    return inputs if isinstance(inputs, dict) else {}


