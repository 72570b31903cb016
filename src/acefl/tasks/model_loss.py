"""A user's module and loss as functions of one vector of parameters: what a client's gradient is of."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from acefl.core.errors import InvalidInput
from acefl.core.types import Vector
from acefl.tasks.client_samples import ClientSamples
from acefl.tasks.compute import Batch
from acefl.tasks.flat_module import FlatModule, output_tensor
from acefl.tasks.own_loss import Loss, mean_of_given, named_loss

_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried which loss it computes


Minibatch = tuple[Batch, torch.Tensor]


class ModelLoss:
    """The loss of a module on a batch, by the module's own parameters or others in their place.

    `loss`: of outputs and targets. `random`: whether a forward pass in training draws random numbers, as dropout does.
    `sample`: what the module gives of the first minibatch when it is evaluated, and the targets.

    Args:
        net: The module.
        loss: Loss of outputs and targets; None: what the module computes itself when it is given labels.
        prepare: Turns stored inputs into what the module takes; None: they are that already.
        data: Samples on which the module is tried.
    """

    def __init__(
        self,
        net: FlatModule,
        loss: Loss | None,
        prepare: Callable[[Any], Any] | None,
        data: ClientSamples,
    ) -> None:
        self.net, self._prepare = net, prepare
        self._writes = False  # into the samples that it is given
        first = data.first_minibatch()
        self.loss: Loss = self._own_loss(first, data.minibatch_of_all()) if loss is None else loss
        self._try(*first)

    @property
    def of_outputs(self) -> bool:
        """Whether the loss is a function of outputs; else nothing but the model knows it."""
        return self.loss is not mean_of_given

    def output(
        self, inputs: Batch, targets: torch.Tensor, parameters: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The module's output, in float32, with its own parameters or others in their place.

        Where nothing but the model knows its loss, that is its output, once for every sample.
        """
        inputs = self._prepared(inputs)
        if self.of_outputs:
            return output_tensor(self.net(inputs, parameters))
        own: torch.Tensor = self.net(inputs, parameters, labels=self._spared(targets)).loss
        return own.float().expand(len(targets))

    def functional(self, flat: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The loss as a function of the parameters."""
        return self.loss(self.output(inputs, targets, self.net.named(flat)), self._spared(targets))

    def gradient(self, model: Vector, inputs: Batch, targets: torch.Tensor) -> Vector:
        """By plain autograd."""
        self.net.vector.copy_(model)
        return self.gradient_here(self.loss(self.output(inputs, targets), targets))

    def gradient_here(self, loss: torch.Tensor) -> Vector:
        """Of a loss that was computed with the module's own parameters."""
        gradients = torch.autograd.grad(loss, self.net.parameters, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in gradients])

    @contextlib.contextmanager
    def keyed_generator(self, key: int) -> Iterator[None]:
        """Where the forward pass is random, the generators it uses start from the key, and are put back afterwards."""
        if not self.random:
            yield
            return
        with self._generators_kept(on_host=self._random_on_host):
            torch.manual_seed(key >> 1)
            if self._random_on_host:
                random.seed(key)
                np.random.seed(key % 2**32)
            yield

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """A first pass, which leaves generators as they were; names that the model does not take are told."""
        with self._generators_kept(on_host=True):
            try:
                yield
            except TypeError as error:
                if "argument" not in str(error):
                    raise
                allowed = "inputs that it takes, chosen by columns=([...], target) or named in a dict"
                raise InvalidInput(f"the model does not take these inputs: {error}; allowed: {allowed}") from error

    def _own_loss(self, first: Minibatch, of_all: Minibatch) -> Loss:
        """Which loss the model computes: tried on a minibatch, and in training on samples of all clients. Those of one
        may all be of one class, which hides class weights, and some models add to their loss in training alone.

        Beside the first model: a head of zeros gives all classes the same, and then many losses are equal.
        """
        start = self.net.vector.clone()
        noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0)).to(start.device)
        with self.trying(), torch.no_grad():
            try:
                self.net.vector.add_(noise, alpha=_BESIDE_THE_FIRST)
                with self.net.evaluating():
                    evaluated = self._given(*first)
                return named_loss(evaluated, self._given(*of_all))
            finally:
                self.net.vector.copy_(start)

    def _given(self, inputs: Batch, targets: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return self.net(self._prepared(inputs), labels=targets), targets

    def _try(self, inputs: Batch, targets: torch.Tensor) -> None:
        """Whether a pass draws random numbers, and whether one writes into samples, as in-place layers may: tried,
        since no list of layers is complete."""
        given = [*tree_leaves(inputs), targets]
        before = [tensor._version for tensor in given]
        with self.trying(), self.net.refusing_changed_buffers():
            states, on_host = self._generator_states(), _host_generators()
            self.gradient(self.net.vector.clone(), inputs, targets)
            self._random_on_host = _host_generators() != on_host
            drawn = any(not torch.equal(old, new) for old, new in zip(states, self._generator_states(), strict=True))
            self.random = self._random_on_host or drawn
        with self.trying(), self.net.evaluating():
            self.sample = self.output(inputs, targets), targets
        self._writes = [tensor._version for tensor in given] != before

    def _prepared(self, inputs: Batch) -> Batch:
        inputs = self._spared(inputs)
        return inputs if self._prepare is None else self._prepare(inputs)

    def _spared(self, samples: Any) -> Any:
        """A copy, where a pass would write into samples that are needed again."""
        return tree_map(torch.clone, samples) if self._writes else samples

    @contextlib.contextmanager
    def _generators_kept(self, on_host: bool) -> Iterator[None]:
        """Torch's generators, and with `on_host` Python's and numpy's, are afterwards as they were."""
        pythons, numpys = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=self._cuda_devices):
            try:
                yield
            finally:
                if on_host:
                    random.setstate(pythons)
                    np.random.set_state(numpys)

    @property
    def _cuda_devices(self) -> list[torch.device]:
        return [self.net.device] if self.net.device.type == "cuda" else []

    def _generator_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda_devices)]


def _host_generators() -> tuple[Any, ...]:
    """The states of Python's and numpy's own generators."""
    _, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(words).tobytes(), *rest
