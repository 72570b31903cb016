"""A user's module and loss as functions of one vector of parameters: what a client's gradient is of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from acefl.core.errors import InvalidInput
from acefl.core.types import Vector
from acefl.tasks.compute import Batch
from acefl.tasks.flat_module import FlatModule, output_tensor
from acefl.tasks.own_loss import Loss, mean_of_given, named_loss

_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried which loss it computes


class ModelLoss:
    """The loss of a module on a batch, by the module's own parameters or others in their place.

    `loss`: of outputs and targets. `random`: whether a forward pass draws random numbers, as dropout does.

    Args:
        net: The module.
        loss: Loss of outputs and targets; None: what the module computes itself when it is given labels.
        prepare: Turns stored inputs into what the module takes; None: they are that already.
        first: A minibatch on which the module is tried.
    """

    def __init__(
        self,
        net: FlatModule,
        loss: Loss | None,
        prepare: Callable[[Any], Any] | None,
        first: tuple[Batch, torch.Tensor],
    ) -> None:
        self.net, self._prepare = net, prepare
        self.loss: Loss = self._own_loss(*first) if loss is None else loss
        self.random = self._draws_random_numbers(*first)

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
        own: torch.Tensor = self.net(inputs, parameters, labels=targets).loss
        return own.float().expand(len(targets))

    def functional(self, flat: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The loss as a function of the parameters."""
        return self.loss(self.output(inputs, targets, self.net.named(flat)), targets)

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
        """Where the forward pass is random, torch's own generators start from the key, and are put back afterwards."""
        if not self.random:
            yield
            return
        with torch.random.fork_rng(devices=self._cuda_devices):
            torch.manual_seed(key >> 1)
            yield

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """A first pass, which leaves torch's generators as they were; names that the model does not take are told."""
        with torch.random.fork_rng(devices=self._cuda_devices):
            try:
                yield
            except TypeError as error:
                if "argument" not in str(error):
                    raise
                allowed = "inputs that it takes, chosen by columns=([...], target) or named in a dict"
                raise InvalidInput(f"the model does not take these inputs: {error}; allowed: {allowed}") from error

    def _own_loss(self, inputs: Batch, targets: torch.Tensor) -> Loss:
        """Which loss the model computes, tried beside the first model: a head of zeros gives all classes the same, and
        then many losses are equal."""
        first = self.net.vector.clone()
        noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(first.device)
        with self.trying(), self.net.evaluating():
            try:
                self.net.vector.add_(noise, alpha=_BESIDE_THE_FIRST)
                return named_loss(self.net(self._prepared(inputs), labels=targets), targets)
            finally:
                self.net.vector.copy_(first)

    def _draws_random_numbers(self, inputs: Batch, targets: torch.Tensor) -> bool:
        """Whether a gradient uses torch's generators: tried, since no list of layers is complete."""
        with self.trying(), self.net.refusing_changed_buffers():
            before = self._generator_states()
            self.gradient(self.net.vector.clone(), inputs, targets)
            after = self._generator_states()
        return any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))

    def _prepared(self, inputs: Batch) -> Batch:
        return inputs if self._prepare is None else self._prepare(inputs)

    @property
    def _cuda_devices(self) -> list[torch.device]:
        return [self.net.device] if self.net.device.type == "cuda" else []

    def _generator_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda_devices)]
