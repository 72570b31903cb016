"""How client gradients are computed: one after another, many models in one call, or replayed on a GPU.

The strategy never changes which computation is done: the same samples at the same models, equal within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from acefl.types import Vector

Batch = object  # a tensor or a (nested) dict, list or tuple of tensors
Loss = Callable[[Vector, Batch, torch.Tensor], torch.Tensor]  # (flat model, inputs, targets) -> scalar


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
        self._batched = vmap(grad(_plain(loss)))
        self._ready: dict[tuple[int, ...], Callable[..., torch.Tensor]] = {}

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        count = len(models)
        size = 1 << (count - 1).bit_length()
        if size != count:
            index = torch.arange(size, device=models.device)
            index[count:] = 0
            models, targets = models[index], targets[index]
            inputs = tree_map(lambda t: t[index], inputs)
        key = (size, *targets.shape[1:])
        call = self._ready.get(key)
        if call is None:
            call = self._ready[key] = self._prepare(models, inputs, targets)
        with torch.no_grad():
            return call(models, inputs, targets)[:count].clone()

    def _prepare(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> Callable[..., torch.Tensor]:
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(self._batched)(models, inputs, targets)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        return traced


class Replayed(Together):
    """On a GPU: `vmap` over stacked models, captured once per batch size as a CUDA graph and replayed.

    A replay costs the device its arithmetic and the host one launch, where eager code costs hundreds.
    """

    name = "cuda-graph-together"

    def _prepare(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> Callable[..., torch.Tensor]:
        return _capture(self._batched, models, inputs, targets)


class ReplayedOneByOne:
    """On a GPU: a single gradient captured as a CUDA graph and replayed per client, for models that fill the device."""

    name = "cuda-graph"

    def __init__(self, loss: Loss) -> None:
        self._gradient = grad(_plain(loss))
        self._ready: dict[tuple[int, ...], Callable[..., torch.Tensor]] = {}

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        key = tuple(targets.shape[1:])
        out = torch.empty_like(models)
        for k in range(len(models)):
            own = (models[k], tree_map(lambda t, k=k: t[k], inputs), targets[k])
            if key not in self._ready:
                self._ready[key] = _capture(self._gradient, *own)
            out[k] = self._ready[key](*own)
        return out


def _plain(loss: Loss) -> Loss:
    """A function of its own around the loss: fx cannot trace a bound method."""

    def plain(model: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        return loss(model, inputs, targets)

    return plain


def _capture(
    gradient: Callable[..., torch.Tensor], models: torch.Tensor, inputs: Batch, targets: torch.Tensor
) -> Callable[..., torch.Tensor]:
    """The gradient function as a CUDA graph on static buffers. What it returns is overwritten by the next call."""
    static = tree_map(torch.clone, (models, inputs, targets))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradient(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gradient(*static)

    def replay(*fresh: object) -> torch.Tensor:
        tree_map(lambda buffer, new: buffer.copy_(new), static, fresh)
        graph.replay()
        return out

    return replay
