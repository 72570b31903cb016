"""How client gradients are computed: one after another, or many models in one call.

The strategy never changes which computation is done: the same samples at the same models, equal within rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from acefl.types import Vector

Batch = object  # a tensor or a (nested) dict, list or tuple of tensors
Loss = Callable[[Vector, Batch, torch.Tensor], torch.Tensor]  # (flat model, inputs, targets) -> scalar

log = logging.getLogger(__name__)


class Gradients(Protocol):
    """Gradients of many models, each on its own minibatch."""

    name: str

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor: ...


class OneByOne:
    """Plain autograd, one model after another: works with any module."""

    name = "one-by-one"

    def __init__(self, gradient: Callable[[Vector, Batch, torch.Tensor], Vector]) -> None:
        self._gradient = gradient

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        rows = [
            self._gradient(models[k], tree_map(lambda t, k=k: t[k], inputs), targets[k]) for k in range(len(models))
        ]
        return torch.stack(rows)


class Together:
    """`vmap` over stacked models, traced once per batch size into a flat list of tensor operations.

    Tracing removes what functorch spends per call in Python, which for small models is most of the time. Batches are
    padded to powers of two by repeating their first row, so that a handful of traces serve every size.
    """

    name = "together"

    def __init__(self, loss: Loss) -> None:
        def plain(model: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
            return loss(model, inputs, targets)  # fx cannot trace a bound method

        self._batched = vmap(grad(plain))
        self._traced: dict[tuple[int, ...], Callable[..., torch.Tensor]] = {}

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        count = len(models)
        size = 1 << (count - 1).bit_length()
        if size != count:
            index = torch.arange(size, device=models.device)
            index[count:] = 0
            models, targets = models[index], targets[index]
            inputs = tree_map(lambda t: t[index], inputs)
        key = (size, *targets.shape[1:])
        traced = self._traced.get(key)
        if traced is None:
            traced = self._traced[key] = self._trace(models, inputs, targets)
        with torch.no_grad():
            return traced(models, inputs, targets)[:count]

    def _trace(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> Callable[..., torch.Tensor]:
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(self._batched)(models, inputs, targets)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        return traced
