"""Gradients of many clients at one model: one pass through shared weights, and a gradient of them per client.

Clients that were sent the same version start from the same weights. Their minibatches are then one large batch, which
fills a device better than several small ones; the rows are those of the first client, then those of the second, and so
on. Losses of clients are independent, so the gradient of their sum, by each client's own copy of a weight, is that
client's gradient. The copies are never made: layers compute with the one weight there is, and give a gradient for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from acefl.core.types import Vector
from acefl.tasks import batch_norm
from acefl.tasks.compute import Batch, Draw, OneByOne
from acefl.tasks.flat_module import FlatModule
from acefl.tasks.shared_layers import Shared

Output = Callable[[Batch, torch.Tensor], torch.Tensor]  # inputs, targets
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried: weights of zeros hide what others do
_TRIED = 2  # samples of each of two clients; whole minibatches where statistics are of the batch
_WRONG = 5e-2  # of a parameter's gradient: far above rounding, on a GPU too, far below what a mistake makes


class SharedWeights:
    """A gradient for each client's minibatch, all at the same model. Tensor operations alone, for `tracing.traced`."""

    name = "shared"

    def __init__(self, net: FlatModule, output: Output, loss: Loss, draw: Draw) -> None:
        self._net, self._output, self._loss, self._draw = net, output, loss, draw

    def __call__(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        return self.over(model, *self._draw(clients, keys))

    def over(self, model: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The same over samples that are given: (clients, samples, ...)."""
        count = len(targets)
        with torch.no_grad():
            shared = {name: Shared(value, count) for name, value in self._net.named(model.detach()).items()}
        with self._in_place(shared), torch.enable_grad():
            together = self._output(tree_map(lambda t: t.flatten(0, 1), inputs), targets.flatten(0, 1))
            outputs = together.unflatten(0, (count, -1)).unbind(0)
            losses = [self._loss(own, target) for own, target in zip(outputs, targets, strict=True)]
            copies = [own.copies for own in shared.values()]
            gradients = torch.autograd.grad(torch.stack(losses).sum(), copies, materialize_grads=True)
        return torch.cat([g.reshape(count, -1).float() for g in gradients], dim=1)

    @contextlib.contextmanager
    def _in_place(self, shared: dict[str, Shared]) -> Iterator[None]:
        """The module with these weights in place of its own, wherever it has them."""
        found = {id(own): shared[name] for name, own in zip(self._net.names, self._net.parameters, strict=True)}
        owners: list[dict[str, Any]] = [layer._parameters for layer in self._net.module.modules()]
        places = [(own, name, was) for own in owners for name, was in own.items() if id(was) in found]
        try:
            for own, name, was in places:
                own[name] = found[id(was)]
            yield
        finally:
            for own, name, was in places:
                own[name] = was

    def try_against(self, alone: OneByOne, first: Vector, other: int) -> None:
        """Raises where a module mixes samples, or uses its weights otherwise: tried, since no list is complete."""
        noise = torch.randn(len(first), generator=torch.Generator().manual_seed(0)).to(first.device)
        model, (inputs, targets) = first + _BESIDE_THE_FIRST * noise, self._draw([0, other], [0, 1])
        norm = torch.inf
        if batch_norm.uses_batch_statistics(self._net.module):
            norm = 2.0  # rounding in a statistic moves every sample: an entry here and there passes a kink
        else:
            inputs, targets = tree_map(lambda t: t[:, :_TRIED], inputs), targets[:, :_TRIED]
        with self._net.in_float32():  # in bfloat16 rounding looks like a mistake
            expected, found = alone.over(model.expand(2, -1), inputs, targets), self.over(model, inputs, targets)
        difference = self._net.difference(expected, found, norm)
        if not difference <= _WRONG:
            raise ValueError(f"gradients computed together differ by {difference:.0e} of their size")
        if self._net.bf16:
            self.over(model, inputs, targets)  # raises where a layer does not take it
