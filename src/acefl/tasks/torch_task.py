"""Anybody's `nn.Module`, loss and per-client data as a task."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.types import Vector
from acefl.tasks.adapters import Adapters
from acefl.tasks.base import Evaluation, Shown
from acefl.tasks.batch_norm import uses_batch_statistics
from acefl.tasks.client_data import ClientData, Collate, Columns, join, read
from acefl.tasks.compute import (
    Batch,
    Beside,
    Compiled,
    Gradients,
    OneByOne,
    Replayed,
    Stacked,
    Together,
    gradient_of,
)
from acefl.tasks.described import described
from acefl.tasks.flat_module import FlatModule, output_tensor
from acefl.tasks.groups import named
from acefl.tasks.local_work import LocalSteps, LocalWork, client_work, local_work
from acefl.tasks.metrics import named_metrics, usual
from acefl.tasks.own_loss import Loss, mean_of_given, named_loss
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
from acefl.tasks.shared_weights import SharedWeights

COMPUTE = ("auto", "one-by-one", "together", "adapters", "shared")
COMPILE = ("auto", True, False)
if TYPE_CHECKING:
    from acefl.tasks.minibatches import Minibatches

log = logging.getLogger(__name__)
_TOGETHER_UP_TO_ON_GPU = 2_000_000  # parameters: above this models run beside each other instead of stacked
_BESIDE = 4  # gradients of large models at once on a GPU: more gain nothing
_BESIDE_PARAMETERS = 2**26  # of these together: each needs memory for its activations
_TOGETHER_UP_TO = 200_000  # parameters, frozen ones too: above this one gradient fills a CPU core
_ADAPTERS_UP_TO = 500_000  # the same, where clients share the frozen ones: on a CPU larger bases gain nothing
_SHARED_AT_ONCE = 20  # clients on one model version
_SHARED_SIZES = (5, 10)  # that are compiled on a GPU
_SHARED_SIZES_STACKED = (10, 20)  # of small models
_COMPILE_FROM = 100_000  # gradients of a run: fewer do not save the seconds that compiling takes
_COMPILE_ABOVE_ON_GPU = 100_000  # parameters: a replay of a smaller model is as fast as it gets
_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried which loss it computes
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
        self._prepare = prepare
        self._augment = augment
        self._batch, self._evaluation_batch = batch, evaluation_batch
        self._local = local_work(local)
        self._compile = compile
        self._ridge = ridge
        self._columns, self._collate = columns, collate
        self._load(clients)
        self._own_loss = loss is None
        self._loss = self._models_own_loss() if loss is None else loss
        known = self._loss is not mean_of_given or not metrics
        require(
            known, "metrics need outputs, and only the model knows its loss; allowed: a loss of outputs and targets"
        )
        self._random_forward = self._draws_random_numbers()
        self._own_metrics = None if metrics is None else named_metrics(metrics)
        self._batch_loss = self._sized_loss()
        self._own = self._first_of_each_client(evaluate_on)
        self._test = self._samples([test]) if test is not None else None
        self._client_tests = self._held_by_clients(client_tests)
        self._label_mix = self._mix_of_labels()
        self.compute = self._choose("auto" if compute == "shared" else compute)
        self.batch_limit = self._most_at_once()
        self._shared = self._replayed_shared(self._shared_or_refusal()) if compute == "shared" else None
        self.shared_limit = 0 if self._shared is None else self._most_shared
        self._compiled: Gradients | None = None  # made when a run first asks for it

    def for_run(self, updates: float, compiled: bool | None = None, alike: bool = True) -> TorchTask:
        """The task as a run of about so many updates computes it, compiled where that pays; `compiled`: as it was.
        `alike`: whether clients start from the same model again and again.

        The choice goes by numbers that are the same every time, not by a stopwatch or by what is cached.
        """
        captured = self.compute if isinstance(self.compute, Replayed) else None
        if captured is None and not (type(self.compute) is Together and self.device.type == "cpu"):
            return self
        if compiled is None:
            mean = sum(self.samples) // self.clients
            steps = self._local.count(mean, self._batch) if isinstance(self._local, LocalWork) else 1
            gains = captured is None or self._net.numbers >= _COMPILE_ABOVE_ON_GPU
            pays = self._compile == "auto" and gains and updates * steps >= _COMPILE_FROM
            compiled = self._compile is True or pays
        if not compiled:
            return self
        try:
            if self._compiled is None:
                made = captured.compiled() if captured else Compiled(self._functional_loss, self._draw_in_one_call)
                made.prepare(self._initial)
                self._compiled = made
        except Exception as error:  # no compiler, or whatever a user's module does that cannot be compiled
            log.warning("gradients are not compiled: %s", _in_a_line(error))
            return self
        log.info("gradients are compiled: the run is of about %d updates", updates)
        shared = self._shared_compiled if alike and captured is not None else None
        task = copy.copy(self)
        task.compute = self._compiled
        if shared is not None:
            task._shared, task.shared_limit = shared, self._most_shared
        return task

    @functools.cached_property
    def _shared_compiled(self) -> Replayed | None:
        """What computes clients on one model together, compiled for a GPU; None, where that is no way of its own."""
        if not isinstance(self.compute, Replayed) or self.compute.most is not None or self._local is not None:
            return None  # adapters share a base already
        if self._most_shared < _SHARED_SIZES[0]:
            return None  # calls would be padded, of models that fill a GPU
        try:
            if self._stacks:
                at_one_model = Stacked(gradient_of(self._functional_loss)).at_one_model
                shared: Any = Replayed(at_one_model, self._gather, shared=True, sizes=_SHARED_SIZES_STACKED)
            else:
                shared = self._replayed_shared(self._shared_or_refusal())
            made: Replayed = shared.compiled()
            made.prepare(self._initial)
            return made
        except Exception as error:  # as above
            log.info("gradients at one model are not computed together: %s", _in_a_line(error))
            return None

    @property
    def _most_shared(self) -> int:
        """How many clients on one model version are computed in one call."""
        return max(1, min(_SHARED_AT_ONCE, 2**28 // len(self._net)))

    def _replayed_shared(self, shared: SharedWeights) -> SharedWeights | Replayed:
        if self.device.type != "cuda":
            return shared
        return Replayed(shared.over, self._gather, name="shared, cuda-graph", shared=True, sizes=_SHARED_SIZES)

    def _load(self, clients: Sequence[ClientData]) -> None:
        """Put all data on the device once, clients one after another, so that a minibatch is a gather."""
        pairs = read(clients, self._columns, self._collate)
        self.samples = [len(targets) for _, targets in pairs]
        for client, count in enumerate(self.samples):
            require(count >= 1, f"client {client} has no data; allowed: at least one sample each")
        self._inputs, self._targets = join(pairs, self.device)
        counts = torch.tensor(self.samples, device=self.device)
        self._counts = counts
        self._offsets = counts.cumsum(0) - counts
        self._places = (counts.numpy(), self._offsets.numpy()) if self.device.type == "cpu" else None
        self._owner = torch.repeat_interleave(torch.arange(self.clients, device=self.device), counts)

    def _samples(self, groups: Sequence[ClientData]) -> Samples:
        """Data to evaluate on, on the device."""
        pairs = read(groups, self._columns, self._collate)
        return self._grouped(*join(pairs, self.device), [len(targets) for _, targets in pairs])

    def _grouped(self, inputs: Batch, targets: torch.Tensor, sizes: list[int]) -> Samples:
        return Samples(inputs, targets, sizes, self._batch_loss.averages(targets))

    def _first_of_each_client(self, count: int | None) -> Samples:
        """What clients are judged by: their data, or the first few samples of each."""
        require(count is None or count >= 1, f"evaluate_on is {count}; allowed: at least 1")
        if count is None or max(self.samples) <= count:
            return self._grouped(self._inputs, self._targets, self.samples)
        place = torch.arange(len(self._owner), device=self.device) - self._offsets[self._owner]
        rows = torch.nonzero(place < count).squeeze(1)
        sizes = [min(count, own) for own in self.samples]
        return self._grouped(tree_map(lambda t: t[rows], self._inputs), self._targets[rows], sizes)

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
        labels = are_labels(self._targets) and are_labels(self._test.targets)
        return LabelMix(self._targets, self.samples, self._test.targets) if labels else None

    def _models_own_loss(self) -> Loss:
        """`loss=None`: which loss it is, tried on a minibatch.

        Beside the first model: a head of zeros gives all classes the same, and then many losses are equal.
        """
        inputs, targets = self._first_minibatch()
        noise = torch.randn(self._initial.shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        with self._trying(), self._net.evaluating():
            try:
                self._net.vector.add_(noise, alpha=_BESIDE_THE_FIRST)
                return named_loss(self._net(self._prepared(inputs), labels=targets), targets)
            finally:
                self._net.vector.copy_(self._initial)

    def _first_minibatch(self) -> tuple[Batch, torch.Tensor]:
        inputs, targets = self._draw([0], [0])
        return tree_map(lambda t: t[0], inputs), targets[0]

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """A first pass, which leaves torch's generators as they were; names that the model does not take are told."""
        with torch.random.fork_rng(devices=self._cuda_devices):
            try:
                yield
            except TypeError as error:
                if "argument" not in str(error):
                    raise
                allowed = "inputs that it takes, chosen by columns=([...], target) or named in a dict"
                raise InvalidInput(f"the model does not take these inputs: {error}; allowed: {allowed}") from error

    def _sized_loss(self) -> BatchLoss:
        """The loss as evaluation calls it; how it takes batches of other sizes is tried on a minibatch."""
        inputs, targets = self._first_minibatch()
        with self._trying(), self._net.evaluating():
            sample = self._output(inputs, targets), targets
            self._metrics = (
                usual(self._loss, sample[0], self._targets) if self._own_metrics is None else self._own_metrics
            )
            return BatchLoss(self._loss, batch=self._batch, limit=self._evaluation_batch, sample=sample)

    def _draws_random_numbers(self) -> bool:
        """Whether a gradient uses torch's generators, as dropout does: tried, since no list of layers is complete."""
        inputs, targets = self._first_minibatch()
        with self._trying(), self._net.refusing_changed_buffers():
            before = self._generator_states()
            self._gradient(self._initial, inputs, targets)
            after = self._generator_states()
        return any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))

    @property
    def _cuda_devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _generator_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda_devices)]

    def _choose(self, compute: str) -> Gradients:
        batches = not isinstance(self._local, LocalSteps) and not self._random_forward
        if compute == "together":
            require(batches, "compute='together' allows neither local steps nor a random forward pass such as dropout")
            require(
                not self._net.channels_last, "compute='together' and channels_last exclude each other; allowed: one"
            )
            return Together(self._functional_loss, self._draw)
        alone = OneByOne(self._gradient, self._draw)
        if compute == "adapters":
            return self._adapters_or_refusal(alone, batches)
        for candidate in self._candidates() if compute == "auto" and batches else ():
            try:
                if isinstance(candidate, Adapters):
                    candidate.try_against(alone, self._initial, self.clients - 1)
                    return self._replayed(candidate)
                candidate(self._initial.unsqueeze(0), [0], [0])
                return candidate
            except Exception as error:  # whatever a user's module does that cannot be traced, captured or stacked
                log.info("gradients are not computed by %s, which does not work here: %s", candidate.name, error)
        return alone

    def _adapters_or_refusal(self, alone: OneByOne, batches: bool) -> Gradients:
        fits = batches and self._loss is not mean_of_given and Adapters.apply_to(self._net)
        allowed = "nothing trained but linear layers on a larger frozen base, no dropout, and a loss of outputs"
        require(fits, f"compute is 'adapters', and the model does not fit; allowed: {allowed}")
        candidate = Adapters(self._net, self._output, self._loss, self._draw)
        try:
            candidate.try_against(alone, self._initial, self.clients - 1)
        except Exception as error:
            raise InvalidInput(f"compute is 'adapters', which does not work here ({error}); allowed: auto") from error
        return self._replayed(candidate)

    def _replayed(self, adapters: Adapters) -> Gradients:
        """Captured on a GPU, where nothing looks at numbers on the host: that would break a capture, and a broken one
        can leave torch's generators and its allocator in a bad state."""
        if self.device.type != "cuda":
            return adapters
        models, zero = self._initial.unsqueeze(0), torch.zeros(1, dtype=torch.int64, device=self.device)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            adapters.over(models, *self._gather(zero, zero))
        except RuntimeError as error:
            log.info("gradients of adapters are not captured: %s", error)
            return adapters
        finally:
            torch.cuda.set_sync_debug_mode(before)
        most = adapters.most
        sizes = (-(-most // 2), most)
        return Replayed(adapters.over, self._gather, name="adapters, cuda-graph", most=most, sizes=sizes)

    def _shared_or_refusal(self) -> SharedWeights:
        fits = self._local is None and not self._random_forward and self._loss is not mean_of_given
        allowed = "one gradient per visit, no dropout, and a loss of outputs"
        require(fits, f"compute is 'shared', and the task does not fit; allowed: {allowed}")
        candidate = SharedWeights(self._net, self._output, self._loss, self._draw)
        try:
            candidate.try_against(OneByOne(self._gradient, self._draw), self._initial, self.clients - 1)
        except Exception as error:
            raise InvalidInput(f"compute is 'shared', which does not work here ({error}); allowed: auto") from error
        return candidate

    def _candidates(self) -> list[Gradients]:
        """Ways to compute several gradients in one call, best first."""
        gpu, found = self.device.type == "cuda", list[Gradients]()
        if gpu:
            gradient = gradient_of(self._functional_loss)
            found.append(Replayed(Stacked(gradient) if self._stacks else Beside(gradient), self._gather))
        elif self._net.numbers <= _TOGETHER_UP_TO:
            found.append(Together(self._functional_loss, self._draw))
        small = gpu or self._net.numbers <= _ADAPTERS_UP_TO
        if small and self._loss is not mean_of_given and Adapters.apply_to(self._net):
            lora = any("lora_" in name for name in self._net.names)
            found.insert(0 if gpu and lora else 1, Adapters(self._net, self._output, self._loss, self._draw))
        return found

    @property
    def _stacks(self) -> bool:
        """Whether a GPU computes models stacked, and not beside each other: `vmap` knows no memory formats."""
        return len(self._net) <= _TOGETHER_UP_TO_ON_GPU and not self._net.channels_last

    def _most_at_once(self) -> int:
        """How many gradients to compute in one call: one, where batching gains nothing."""
        if isinstance(self.compute, OneByOne):
            return 1
        if isinstance(self.compute, Adapters):
            return self.compute.most
        if isinstance(self.compute, Replayed) and self.compute.most is not None:
            return self.compute.most
        if isinstance(self.compute, Replayed) and not self._stacks:
            return max(1, min(_BESIDE, _BESIDE_PARAMETERS // len(self._net)))
        return 1 << (max(1, min(64, 2**24 // len(self._net))).bit_length() - 1)

    def describe(self) -> dict[str, Any]:
        work = {"client_work": client_work(self._local, self._batch)}
        if self._description is not None:
            return {**self._description, **work}
        made_by = {
            "name": "torch",
            "model": type(self._net.module).__name__,
            "trained": len(self._net) if len(self._net) < self._net.numbers else None,
            "loss": "the model's own" if self._own_loss else described(self._loss),
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
        if self._random_forward:
            rows = [self._seeded(model, client, k) for model, client, k in zip(models, clients, keys, strict=True)]
            gradients = torch.stack(rows)
        else:
            gradients = self.compute(models, clients, keys)
        return gradients.add_(models, alpha=self._ridge) if self._ridge else gradients

    def _draw(self, clients: list[int], keys: list[int], steps: int = 1) -> tuple[Batch, torch.Tensor]:
        """A minibatch (or one for each of several steps) per client, from its key alone."""
        if self._places is None:
            signed = torch.tensor([keyed.signed(k) for k in keys], device=self.device)
            return self._gather(torch.tensor(clients, device=self.device), signed, steps)
        who = np.array(clients)
        counts, offsets = self._places
        rows = keyed.choose_here(keys, steps * self._batch, counts[who])
        rows += offsets[who][:, None]
        return self._pick(torch.from_numpy(rows), keys)

    def _draw_in_one_call(self, clients: list[int], keys: list[int], steps: int = 1) -> tuple[Batch, torch.Tensor]:
        """`_draw`, the same samples, at a fraction of what its calls cost."""
        if self._minibatches is None or not isinstance(self._inputs, torch.Tensor):
            return self._draw(clients, keys, steps)
        return self._minibatches.draw(self._inputs, self._targets, clients, keys, steps * self._batch)

    @functools.cached_property
    def _minibatches(self) -> Minibatches | None:
        """None where samples are changed as they are drawn, or numba is missing."""
        if self._places is None or self._augment is not None:
            return None
        try:
            from acefl.tasks.minibatches import Minibatches
        except ImportError:  # numba is missing, or refuses this numpy
            return None
        return Minibatches(*self._places)

    def _gather(self, clients: torch.Tensor, keys: torch.Tensor, steps: int = 1) -> tuple[Batch, torch.Tensor]:
        rows = keyed.choose(keys, steps * self._batch, self._counts[clients]) + self._offsets[clients].unsqueeze(1)
        return self._pick(rows, keys)

    def _pick(self, rows: torch.Tensor, keys: keyed.Keys) -> tuple[Batch, torch.Tensor]:
        """The samples with these numbers, changed as `augment` changes minibatches."""
        flat = rows.reshape(-1)

        def picked(t: torch.Tensor) -> torch.Tensor:  # as t[rows] does, in half the time for few rows
            return t.index_select(0, flat).view(*rows.shape, *t.shape[1:])

        targets = picked(self._targets)
        inputs = picked(self._inputs) if isinstance(self._inputs, torch.Tensor) else tree_map(picked, self._inputs)
        if self._augment is not None:
            if not isinstance(keys, torch.Tensor):
                keys = torch.tensor([keyed.signed(k) for k in keys], device=self.device)
            inputs = self._augment(inputs, keys)
        return inputs, targets

    def _functional_loss(self, flat: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        return self._loss(self._output(inputs, targets, self._net.named(flat)), targets)

    def _prepared(self, inputs: Batch) -> Batch:
        return inputs if self._prepare is None else self._prepare(inputs)

    def _output(
        self, inputs: Batch, targets: torch.Tensor, parameters: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The module's output, in float32, with its own parameters or others in their place.

        Where nothing but the model knows its loss, that is its output, once for every sample.
        """
        inputs = self._prepared(inputs)
        if self._loss is not mean_of_given:
            return output_tensor(self._net(inputs, parameters))
        own: torch.Tensor = self._net(inputs, parameters, labels=targets).loss
        return own.float().expand(len(targets))

    def _gradient(self, model: Vector, inputs: Batch, targets: torch.Tensor) -> Vector:
        self._net.vector.copy_(model)
        loss = self._loss(self._output(inputs, targets), targets)
        gradients = torch.autograd.grad(loss, self._net.parameters, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in gradients])

    def _seeded(self, model: Vector, client: int, key: int) -> Vector:
        """One gradient whose forward pass is random (dropout)."""
        inputs, targets = self._draw([client], [key])
        with self._keyed_generator(key):
            return self._gradient(model, tree_map(lambda t: t[0], inputs), targets[0])

    def _train(self, model: Vector, client: int, key: int) -> Vector:
        assert isinstance(self._local, LocalSteps)
        inputs, targets = self._draw([client], [key], self._local.steps)
        self._net.vector.copy_(model)
        optimizer = self._local.optimizer(self._net.parameters)
        with self._keyed_generator(key):
            for step in range(self._local.steps):
                part = slice(step * self._batch, (step + 1) * self._batch)
                own = targets[0, part]
                loss = self._loss(self._output(tree_map(lambda t, p=part: t[0, p], inputs), own), own)
                if self._ridge:
                    loss = loss + 0.5 * self._ridge * sum((p * p).sum() for p in self._net.parameters)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        optimizer.zero_grad()
        return model - self._net.vector

    @contextlib.contextmanager
    def _keyed_generator(self, key: int) -> Iterator[None]:
        """Where the forward pass is random, torch's own generators start from the key, and are put back afterwards."""
        if not self._random_forward:
            yield
            return
        with torch.random.fork_rng(devices=self._cuda_devices):
            torch.manual_seed(key >> 1)
            yield

    def client_gradients(self, models: torch.Tensor, clients: list[int]) -> torch.Tensor:
        """Row k: the exact gradient at models[k] of clients[k]'s loss over all its data, as evaluation defines it.

        Data are taken in pieces of a minibatch, so that clients with few samples and with many share one call.
        """
        self._refuse_inexact()
        if not self._averages:
            pairs = zip(models, clients, strict=True)
            return torch.stack([self._whole_gradient(model, client) for model, client in pairs])
        owner, rows, weights = self._pieces(clients)
        limit, together = self.batch_limit, isinstance(self._in_pieces, Together)
        gradients = torch.zeros_like(models)
        for start in range(0, len(owner), limit):
            part = torch.arange(start, min(start + limit, len(owner)), device=self.device)
            count = len(part)
            if together and count < limit <= len(owner):  # one size, one trace
                part = torch.cat((part, part[:1].expand(limit - count)))
            batch = (tree_map(lambda t, p=part: t[rows[p]], self._inputs), weights[part])
            of_pieces = self._in_pieces.over(models[owner[part]], batch, self._targets[rows[part]])
            gradients.index_add_(0, owner[part[:count]], of_pieces[:count])
        return gradients.add_(models, alpha=self._ridge) if self._ridge else gradients

    def mean_gradient(self, model: Vector) -> Vector:
        """The exact gradient of the mean over clients of each one's loss over all its data."""
        self._refuse_inexact()
        if not self._averages:
            return torch.stack([self._whole_gradient(model, client) for client in range(self.clients)]).mean(0)
        gradient = self._ridge * model
        weights = 1.0 / (self.clients * self._counts[self._owner])
        for start in range(0, len(self._owner), self._evaluation_batch):
            part = slice(start, start + self._evaluation_batch)
            batch = (tree_map(lambda t, p=part: t[p], self._inputs), weights[part])
            gradient += self._weighted_gradient(model, batch, self._targets[part])
        return gradient

    @functools.cached_property
    def _averages(self) -> bool:
        """Whether a client's loss is the mean of its samples' own."""
        return self._batch_loss.averages(self._targets)

    def _whole_gradient(self, model: Vector, client: int) -> Vector:
        """The exact gradient of a loss that has to see a client's data together."""
        self._net.vector.copy_(model)
        total, samples, start = torch.zeros_like(model), 0, int(self._offsets[client])
        for size in self._batch_loss.pieces(self.samples[client]):
            part = slice(start, start + size)
            output = self._output(tree_map(lambda t, p=part: t[p], self._inputs), self._targets[part])
            start += size
            if self._batch_loss.nothing_counts(output, self._targets[part]):
                continue
            loss = self._batch_loss(output, self._targets[part])
            gradients = torch.autograd.grad(loss, self._net.parameters, materialize_grads=True)
            total += size * torch.cat([g.reshape(-1) for g in gradients])
            samples += size
        return total / max(samples, 1) + self._ridge * model

    def _refuse_inexact(self) -> None:
        alone = not self._random_forward and not uses_batch_statistics(self._net.module)
        exact = self._local is None and self._augment is None and alone
        require(
            exact,
            "an exact gradient is asked of a task with local steps, batch statistics, augmentation or a random forward "
            "pass such as dropout; allowed: sampled gradients",
        )

    def _pieces(self, clients: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The clients' data in pieces of `batch` samples: whose they are, their rows, and each sample's weight."""
        index = torch.tensor(clients, device=self.device)
        per_client = (self._counts[index] + self._batch - 1) // self._batch
        owner = torch.repeat_interleave(torch.arange(len(clients), device=self.device), per_client)
        number = torch.arange(len(owner), device=self.device) - (per_client.cumsum(0) - per_client)[owner]
        place = number.unsqueeze(1) * self._batch + torch.arange(self._batch, device=self.device)
        counts = self._counts[index][owner].unsqueeze(1)
        rows = self._offsets[index][owner].unsqueeze(1) + place.minimum(counts - 1)
        return owner, rows, (place < counts) / counts

    @functools.cached_property
    def _in_pieces(self) -> Together | OneByOne:
        if isinstance(self.compute, Together):
            return Together(self._weighted_loss, self._draw)
        return OneByOne(self._weighted_gradient, self._draw)

    def _weighted_loss(self, flat: Vector, batch: Any, targets: torch.Tensor) -> torch.Tensor:
        inputs, weights = batch
        return torch.dot(
            self._batch_loss.of_samples(self._output(inputs, targets, self._net.named(flat)), targets), weights
        )

    def _weighted_gradient(self, model: Vector, batch: Any, targets: torch.Tensor) -> Vector:
        inputs, weights = batch
        self._net.vector.copy_(model)
        loss = torch.dot(self._batch_loss.of_samples(self._output(inputs, targets), targets), weights)
        gradients = torch.autograd.grad(loss, self._net.parameters, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in gradients])

    def evaluate(self, model: Vector) -> Evaluation:
        self._net.vector.copy_(model)
        alone = self._test is None
        with self._net.evaluating():
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
        groups = data.sizes if self._loss is mean_of_given else [len(data.targets)]  # the model's loss is of its batch
        start = 0
        for size in (piece for group in groups for piece in even_pieces(group, self._evaluation_batch)):
            part = slice(start, start + size)
            targets = data.targets[part]
            yield self._output(tree_map(lambda t, p=part: t[p], data.inputs), targets), targets
            start += size


def _in_a_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
