"""Gradients of many clients whose models share a frozen base, such as LoRA adapters, in one pass.

Asynchronous clients each have a model version of their own. Where most of a model is frozen, the versions differ in
small matrices only. Then the minibatches of several clients go through the base as one batch, and nothing but the
trained matrices is per client. The losses of clients are independent, so the gradient of their sum, by each client's
own matrices, is that client's gradient. This needs no `vmap`, which many models of transformers do not bear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

from acefl.core.types import Vector
from acefl.tasks.compute import Batch, Draw, OneByOne
from acefl.tasks.flat_module import FlatModule

Output = Callable[[Batch, torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]  # inputs, targets, parameters
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_AT_ONCE = 16  # more gain little anywhere
_MEMORY = 2**30  # bytes kept for a backward pass on a CPU; on a GPU an eighth of what it has
_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried: a factor B of zeros hides what A does
_TRIED = 2  # samples of each of two clients
_WRONG = 1e-2  # of a parameter's largest entry: far above rounding in float32, far below what a mistake makes


class Adapters:
    """Each client's trained parameters, stacked, in the linear layers of one module whose other parameters are frozen.

    `most` says how many clients' activations fit into memory together.
    """

    name = "adapters"

    def __init__(self, net: FlatModule, output: Output, loss: Loss, draw: Draw) -> None:
        self._net, self._output, self._loss, self._draw = net, output, loss, draw
        self.most = _AT_ONCE

    @staticmethod
    def apply_to(net: FlatModule) -> bool:
        """Whether the frozen part is the larger one, and all else are weights and biases of plain linear layers."""
        linear = [layer for layer in net.module.modules() if type(layer) is nn.Linear]
        known = {id(parameter) for layer in linear for parameter in layer.parameters(recurse=False)}
        return 2 * len(net) < net.numbers and all(id(own) in known for own in net.parameters)

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return self.over(models, *self._draw(clients, keys))

    def over(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The same over samples that are given."""
        count = len(models)
        parts = [part.contiguous().requires_grad_() for part in self._net.stacked_views(models.detach())]
        named = zip(self._net.names, parts, strict=True)
        stacked: dict[str, torch.Tensor] = {name: Stacked.of(part) for name, part in named}
        together = self._output(tree_map(lambda t: t.flatten(0, 1), inputs), targets.flatten(0, 1), stacked)
        outputs = together.unflatten(0, (count, -1)).unbind(0)
        loss = torch.stack([self._loss(own, target) for own, target in zip(outputs, targets, strict=True)]).sum()
        gradients = torch.autograd.grad(loss, parts, materialize_grads=True)
        return torch.cat([g.reshape(count, -1) for g in gradients], dim=1)

    def try_against(self, alone: OneByOne, first: Vector, other: int) -> None:
        """Raises where a module mixes samples, or uses its weights otherwise: tried, since no list is complete."""
        noise = torch.randn(2, len(first), generator=torch.Generator().manual_seed(0)).to(first.device)
        models, (inputs, targets) = first + _BESIDE_THE_FIRST * noise, self._draw([0, other], [0, 1])
        few = tree_map(lambda t: t[:, :_TRIED], inputs), targets[:, :_TRIED]
        with self._net.in_float32():  # in bfloat16 rounding looks like a mistake
            difference = self._net.difference(alone.over(models, *few), self.over(models, *few))
        if not difference <= _WRONG:
            raise ValueError(f"gradients computed together differ by {difference:.0e} of the largest entry")
        with self._measured(share=2 * few[1].shape[1] / targets.shape[1]):
            self.over(models, *few)
        if self.most < 2:
            raise ValueError("the activations of two clients do not fit into memory")

    @contextlib.contextmanager
    def _measured(self, share: float) -> Iterator[None]:
        """Sets `most` by the bytes that autograd keeps for so many minibatches, weights of the module aside."""
        kept = {parameter.untyped_storage().data_ptr(): 0 for parameter in self._net.module.parameters()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
        gpu = self._net.device.type == "cuda"
        memory = torch.cuda.get_device_properties(self._net.device).total_memory // 8 if gpu else _MEMORY
        self.most = max(1, min(_AT_ONCE, int(memory * share) // max(1, sum(kept.values()))))


class Stacked(torch.Tensor):
    """A weight or bias per client. A linear layer takes it; any other use is an error, so that none goes unnoticed."""

    plain: torch.Tensor  # the same as no subclass: what a layer computes with, and tracing can follow

    @classmethod
    def of(cls, plain: torch.Tensor) -> Stacked:
        stacked = plain.as_subclass(cls)
        stacked.plain = plain
        return stacked

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear:
                return _linear(*args, **(kwargs or {}))
            if func in _LOOKS:
                return func(*args)
        raise TypeError(f"a trained weight is used by {getattr(func, '__name__', func)}, not by linear layers alone")


_LOOKS = (torch.Tensor.dtype.__get__, torch.Tensor.device.__get__)  # type: ignore[attr-defined]


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of x are those of the first client, then those of the second, ...; each meets its own weight and bias."""
    count = len(weight) if isinstance(weight, Stacked) or bias is None else len(bias)
    rows = x.reshape(count, -1, x.shape[-1])
    if isinstance(weight, Stacked):
        y = torch.bmm(rows, weight.plain.transpose(1, 2))
    else:
        y = F.linear(rows, weight)
    if bias is not None:
        y = y + (bias.plain.unsqueeze(1) if isinstance(bias, Stacked) else bias)
    return y.reshape(*x.shape[:-1], -1)
