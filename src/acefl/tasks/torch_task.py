"""Anybody's `nn.Module`, loss and per-client data as a task."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from acefl.core.errors import one_of, require
from acefl.core.types import Vector
from acefl.tasks.base import Evaluation, Shown
from acefl.tasks.batch_norm import uses_batch_statistics
from acefl.tasks.client_data import ClientData, Collate, Columns, join, read
from acefl.tasks.client_samples import ClientSamples
from acefl.tasks.compute import Batch, Replayed, Together
from acefl.tasks.described import described
from acefl.tasks.exact_gradients import ExactGradients
from acefl.tasks.flat_module import FlatModule
from acefl.tasks.groups import named
from acefl.tasks.local_work import LocalSteps, LocalWork, client_work, local_work
from acefl.tasks.metrics import named_metrics, usual
from acefl.tasks.model_loss import ModelLoss
from acefl.tasks.own_loss import Loss
from acefl.tasks.scoring import (
    BatchLoss,
    LabelMix,
    Part,
    Samples,
    Scored,
    Scores,
    are_labels,
    evaluation,
    even_pieces,
    score,
)
from acefl.tasks.strategies import COMPUTE, Strategies

log = logging.getLogger(__name__)
COMPILE = ("auto", True, False)
EVALUATION_BATCH = 4096


class TorchTask(Shown):
    """A model, a loss of a batch, and every client's data.

    model: any module that gives a tensor, or an output with `.logits` as those of transformers do. Its trainable
    parameters alone travel: with a frozen backbone, or a PEFT adapter, that is what `requires_grad`. The model is
    copied: what is passed stays as it is.
    loss: a function of outputs and targets. None: what the model computes itself when called with `labels=targets`.
    clients: one entry each, an `(inputs, targets)` tuple of tensors or arrays (inputs may be a dict of them, given to
    the model by name), a dict of columns, a `datasets.Dataset`, a `DataLoader` or a map-style Dataset, which is read
    once. columns: `(inputs, target)`, which columns are meant: one name, or a list of names for inputs by name.
    collate: makes one batch of a list of rows, as for a DataLoader; all clients' rows are given to it in one call.
    local: a client's work in place of one minibatch gradient: `"sgd(lr=0.1, epochs=2)"`, the same as
    `LocalWork("sgd", lr=0.1, epochs=2)`, or `LocalSteps(...)`.
    compute: `one-by-one`, `together` (many client models in one call), or `auto`, which goes by the model's size and
    the device and not by a stopwatch, so that the same run gives the same bits tomorrow. Where linear layers alone are
    trained on a larger frozen base, as by LoRA, many clients' minibatches can go through that base at once: `adapters`,
    which `auto` chooses on a GPU, and on a CPU where the whole model has half a million parameters at most. `shared`:
    clients that start from the same model go through its weights as one batch, all others are computed as by `auto`;
    on a CPU that gains nothing, and on a GPU `auto` does it in what is compiled.
    compile: True compiles what `together` computes on a CPU with a C++ compiler, and on a GPU what is replayed there:
    faster, and equal within rounding, not in every bit (in float32 on a CPU within 1e-5 of the largest entry; in
    bfloat16 as far apart as both are from float32). `auto` does so in simulations of at least 100,000 gradients, which
    is where compiling pays. A run's record says whether it was; what cannot be compiled is not, and a line says so.
    prepare: turns stored inputs into what the model takes (say uint8 pixels into normalised floats), on the device.
    augment: changes minibatches in training, from keys alone; called with inputs of (clients, samples, ...) and a
    tensor of one key per client.
    client_tests: data that clients do not train on, one entry each in the same forms: what held-out scores are of.
    Without them they are of `test`, where targets are classes: every class by the client's share of it.
    evaluate_on: judge each client by so many of its samples at most, instead of by all of them. evaluation_batch:
    samples per call when evaluating.

    A client's loss is `loss` called once on all its data (on even pieces, averaged by their numbers of samples, where
    it has more than `evaluation_batch`), as is the test set's. A loss that adds up over its batch is reported for a
    batch of the training size. Losses are never averages of single samples' losses, unless that is the same.
    bf16: forward and backward in bfloat16 autocast; channels_last: that memory format for 4-d inputs and weights.
    description: what a record says of the task, in place of what made it.
    names: what clients are called in records and reports. `tasks.by_group` gives clients with their names and held-out
    data, which are then used.

    Args:
        model: A module; its trainable parameters are float32.
        loss: Loss of outputs and targets, as training computes it; None: the model's own.
        clients: See above.
        test: Test data, like one entry of `clients`.
        client_tests: Every client's own held-out data, like `clients`.
        columns, collate: See above.
        metrics: Other metrics by name, each a function of outputs and targets, a torchmetrics object or a
            `tasks.Metric`; None: `rmse` and `r2` of a regression, `f1` of yes-or-no targets.
        batch: Samples per minibatch, drawn with replacement.
        local: A client's work; None: one gradient.
        ridge: Weight of half the squared norm of the model, added to the loss.
        device: Where to compute.
        compute, compile, prepare, augment, evaluate_on, evaluation_batch, bf16, channels_last: See above.
        description: What records say of the task.
        names: What clients are called; None: they have numbers alone.
    """

    objective = "client_loss"

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        clients: Sequence[ClientData],
        *,
        test: ClientData | None = None,
        client_tests: Sequence[ClientData] | None = None,
        columns: Columns | None = None,
        collate: Collate | None = None,
        metrics: Mapping[str, Any] | None = None,
        batch: int = 20,
        local: str | LocalSteps | LocalWork | None = None,
        ridge: float = 0.0,
        device: str | torch.device = "cpu",
        compute: str = "auto",
        compile: str | bool = "auto",
        prepare: Callable[[Any], Any] | None = None,
        augment: Callable[[Any, torch.Tensor], Any] | None = None,
        evaluate_on: int | None = None,
        evaluation_batch: int = EVALUATION_BATCH,
        bf16: bool = False,
        channels_last: bool = False,
        description: dict[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        require(len(clients) >= 1, "clients is empty; allowed: at least one client's data")
        require(batch >= 1, f"batch is {batch}; allowed: at least 1")
        require(evaluation_batch >= 1, f"evaluation_batch is {evaluation_batch}; allowed: at least 1")
        one_of("compute", compute, COMPUTE)
        require(compile in COMPILE, f"compile is {compile!r}; allowed: auto, True, False")
        self.device = torch.device(device)
        self.clients = len(clients)
        self.names, client_tests = named(clients, names, client_tests)
        self._description = description
        self._evaluate_on = evaluate_on
        self._net = FlatModule(model, self.device, bf16=bf16, channels_last=channels_last)
        self._initial = self._net.vector.clone()
        self._prepare, self._augment = prepare, augment
        self._batch, self._evaluation_batch = batch, evaluation_batch
        self._local = local_work(local)
        self._compile = compile
        self._ridge = ridge
        self._columns, self._collate = columns, collate
        self._data = ClientSamples(read(clients, columns, collate), self.device, batch, augment)
        self.samples = self._data.sizes
        self._own_loss = loss is None
        self._model = ModelLoss(self._net, loss, prepare, self._data)
        require(
            self._model.of_outputs or not metrics,
            "metrics need outputs, and only the model knows its loss; allowed: a loss of outputs and targets",
        )
        self._own_metrics = None if metrics is None else named_metrics(metrics)
        self._batch_loss = self._sized_loss()
        self._own = self._judged(evaluate_on)
        self._test = self._samples([test]) if test is not None else None
        self._client_tests = self._held_by_clients(client_tests)
        self._label_mix = self._mix_of_labels()
        self._strategies = Strategies(self._model, self._data, self._initial, self._local)
        self.compute = self._strategies.choose("auto" if compute == "shared" else compute)
        self.batch_limit = self._strategies.at_once(self.compute)
        self._shared = self._strategies.shared() if compute == "shared" else None
        self.shared_limit = 0 if self._shared is None else self._strategies.most_shared

    def for_run(self, updates: float, compiled: bool | None = None, alike: bool = True) -> TorchTask:
        """The task as a run of about so many updates computes it, compiled where that pays; `compiled`: as it was.
        `alike`: whether clients start from the same model again and again.

        The choice goes by numbers that are the same every time, not by a stopwatch or by what is cached.
        """
        if not self._strategies.compiles(self.compute):
            if self._compile is True:
                log.warning("gradients are not compiled: they are computed %s", self.compute.name)
            return self
        if compiled is None:
            mean = sum(self.samples) // self.clients
            steps = self._local.count(mean, self._batch) if isinstance(self._local, LocalWork) else 1
            pays = self._compile == "auto" and self._strategies.compiling_pays(self.compute, updates * steps)
            compiled = self._compile is True or pays
        made = self._strategies.compiled(self.compute) if compiled else None
        if made is None:
            return self
        log.info("gradients are compiled: the run is of about %d updates", updates)
        own_way = alike and isinstance(self.compute, Replayed) and self.compute.most is None  # adapters share a base
        shared = self._strategies.shared_compiled if own_way else None
        task = copy.copy(self)
        task.compute = made
        if shared is not None:
            task._shared, task.shared_limit = shared, self._strategies.most_shared
        return task

    def _samples(self, groups: Sequence[ClientData]) -> Samples:
        """Data to evaluate on, on the device."""
        pairs = read(groups, self._columns, self._collate)
        return self._grouped(*join(pairs, self.device), [len(targets) for _, targets in pairs])

    def _grouped(self, inputs: Batch, targets: torch.Tensor, sizes: list[int]) -> Samples:
        return Samples(inputs, targets, sizes, self._batch_loss.averages(targets))

    def _judged(self, count: int | None) -> Samples:
        """What clients are judged by: their data, or the first few samples of each."""
        require(count is None or count >= 1, f"evaluate_on is {count}; allowed: at least 1")
        if count is None or max(self.samples) <= count:
            return self._grouped(self._data.inputs, self._data.targets, self.samples)
        return self._grouped(*self._data.first_of_each(count))

    def _held_by_clients(self, tests: Sequence[ClientData] | None) -> Samples | None:
        if tests is None:
            return None
        allowed = f"one entry for each of the {self.clients} clients"
        require(len(tests) == self.clients, f"client_tests has {len(tests)} entries; allowed: {allowed}")
        data = self._samples(tests)
        for client, count in enumerate(data.sizes):
            require(count >= 1, f"client_tests has no data for client {client}; allowed: at least one sample each")
        return data

    def _mix_of_labels(self) -> LabelMix | None:
        """For held-out scores of clients that have no test data of their own."""
        if self._test is None or self._client_tests is not None:
            return None
        labels = are_labels(self._data.targets) and are_labels(self._test.targets)
        return LabelMix(self._data.targets, self.samples, self._test.targets) if labels else None

    def _sized_loss(self) -> BatchLoss:
        """The loss as evaluation calls it; how it takes batches of other sizes is tried on a minibatch."""
        given, loss, sample = self._own_metrics, self._model.loss, self._model.sample
        self._metrics = usual(loss, sample[0], self._data.targets) if given is None else given
        return BatchLoss(loss, batch=self._batch, limit=self._evaluation_batch, sample=sample)

    def describe(self) -> dict[str, Any]:
        work = {"client_work": client_work(self._local, self._batch)}
        if self._description is not None:
            return {**self._description, **work}
        made_by = {
            "name": "torch",
            "model": type(self._net.module).__name__,
            "trained": len(self._net) if len(self._net) < self._net.numbers else None,
            "loss": "the model's own" if self._own_loss else described(self._model.loss),
            "clients": self.clients,
            "samples": sum(self.samples),
            "columns": described(self._columns),
            "batch": self._batch,
            "local": described(self._local),
            "ridge": self._ridge,
            "prepare": described(self._prepare),
            "augment": described(self._augment),
            "bf16": self._net.bf16,
            "test": sum(self._test.sizes) if self._test is not None else None,
            "client_tests": sum(self._client_tests.sizes) if self._client_tests is not None else None,
            "metrics": described({name: one.compute for name, one in self._own_metrics.items()})
            if self._own_metrics
            else None,
            "evaluate_on": self._evaluate_on,
            "evaluation_batch": self._evaluation_batch,
            **work,
        }
        return {name: value for name, value in made_by.items() if value is not None}

    def initial(self) -> Vector:
        return self._initial.clone()

    def module(self, model: Vector) -> nn.Module:
        """A copy of the task's module with this model's parameters, to use or save outside acefl.

        Of a PEFT model it is one, so that `module.save_pretrained(folder)` writes the adapter.

        Args:
            model: A model vector, such as `run.model`.
        """
        return self._net.with_parameters(model)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        if isinstance(self._local, LocalSteps):
            rows = [self._train(model, client, k) for model, client, k in zip(models, clients, keys, strict=True)]
            return torch.stack(rows)
        if isinstance(self._local, LocalWork):
            counts = [self._local.count(self.samples[client], self._batch) for client in clients]
            return self._local.updates(self._gradients, models, clients, keys, counts)
        return self._gradients(models, clients, keys)

    def shared_updates(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        assert self._shared is not None
        models = model.unsqueeze(0) if isinstance(self._shared, Replayed) else model
        gradients = self._shared(models, clients, keys)
        return gradients.add_(model, alpha=self._ridge) if self._ridge else gradients

    def _gradients(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """Row k: a minibatch gradient of clients[k] at models[k]."""
        if self._model.random:
            rows = [self._seeded(model, client, k) for model, client, k in zip(models, clients, keys, strict=True)]
            gradients = torch.stack(rows)
        else:
            gradients = self.compute(models, clients, keys)
        return gradients.add_(models, alpha=self._ridge) if self._ridge else gradients

    def _seeded(self, model: Vector, client: int, key: int) -> Vector:
        """One gradient whose forward pass is random (dropout)."""
        inputs, targets = self._data.draw([client], [key])
        with self._model.keyed_generator(key):
            return self._model.gradient(model, tree_map(lambda t: t[0], inputs), targets[0])

    def _train(self, model: Vector, client: int, key: int) -> Vector:
        assert isinstance(self._local, LocalSteps)
        inputs, targets = self._data.draw([client], [key], self._local.steps)
        self._net.vector.copy_(model)
        optimizer = self._local.optimizer(self._net.parameters)
        with self._model.keyed_generator(key):
            for step in range(self._local.steps):
                part = slice(step * self._batch, (step + 1) * self._batch)
                own = targets[0, part]
                loss = self._model.loss(self._model.output(tree_map(lambda t, p=part: t[0, p], inputs), own), own)
                if self._ridge:
                    loss = loss + 0.5 * self._ridge * sum((p * p).sum() for p in self._net.parameters)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        optimizer.zero_grad()
        return model - self._net.vector

    def client_gradients(self, models: torch.Tensor, clients: list[int]) -> torch.Tensor:
        """Row k: the exact gradient at models[k] of clients[k]'s loss over all its data, as evaluation defines it."""
        self._refuse_inexact()
        return self._exact.of_clients(models, clients)

    def mean_gradient(self, model: Vector) -> Vector:
        """The exact gradient of the mean over clients of each one's loss over all its data."""
        self._refuse_inexact()
        return self._exact.of_mean(model)

    @functools.cached_property
    def _exact(self) -> ExactGradients:
        return ExactGradients(
            self._model,
            self._data,
            self._batch_loss,
            ridge=self._ridge,
            piece=self._batch,
            at_once=self.batch_limit,
            stacked=isinstance(self.compute, Together),
            evaluation_batch=self._evaluation_batch,
        )

    def _refuse_inexact(self) -> None:
        alone = not self._model.random and not uses_batch_statistics(self._net.module)
        exact = self._local is None and self._augment is None and alone
        require(
            exact,
            "an exact gradient is asked of a task with local steps, batch statistics, augmentation or a random forward "
            "pass such as dropout; allowed: sampled gradients",
        )

    def evaluate(self, model: Vector) -> Evaluation:
        self._net.vector.copy_(model)
        alone = self._test is None
        with self._model.keyed_generator(0), self._net.evaluating():
            own = score(self._batch_loss, self._outputs(self._own), self._own, self._metrics, overall=alone)
            test, held_out = self._held_out()
        penalty = 0.5 * self._ridge * float(model @ model) if self._ridge else 0.0
        return evaluation(own, test, held_out, self._metrics, penalty)

    def _held_out(self) -> tuple[Scored | None, Scores | None]:
        """What the test set says, and every client's scores on data it does not train on."""
        test, mixed = None, None
        if self._test is not None:
            outputs = list(self._outputs(self._test)) if self._label_mix else self._outputs(self._test)
            test = score(self._batch_loss, outputs, self._test, self._metrics, of="the test set")
            if self._label_mix is not None and isinstance(outputs, list):
                mixed = self._label_mix.scores(self._batch_loss, outputs, test)
        tests = self._client_tests
        if tests is None:
            return test, mixed
        of = "the held-out data of client {}"
        return test, score(self._batch_loss, self._outputs(tests), tests, self._metrics, of=of).groups

    def _outputs(self, data: Samples) -> Iterator[Part]:
        """The model's outputs with their targets, in parts that are small enough."""
        groups = data.sizes if not self._model.of_outputs else [len(data.targets)]  # the model's loss is of its batch
        start = 0
        for size in (piece for group in groups for piece in even_pieces(group, self._evaluation_batch)):
            part = slice(start, start + size)
            targets = data.targets[part]
            yield self._model.output(tree_map(lambda t, p=part: t[p], data.inputs), targets), targets
            start += size
