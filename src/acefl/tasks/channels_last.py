"""A flat model as convolutions on a GPU want it: weights with the channels last, in their own precision."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from acefl.tasks import tracing


def convolution_weights(model: nn.Module) -> set[str]:
    """Names of weights that go into a convolution as they are: a module of its own kind may compute with them first."""
    return {f"{name}.weight".lstrip(".") for name, module in model.named_modules() if type(module) is nn.Conv2d}


class ChannelsLast(torch.autograd.Function):
    """Parameters of these shapes from a flat model, those with a dtype as convolution weights of it; backwards, a flat
    gradient.

    One copy per weight on the way in and one on the way back. Left to autograd, each way is a change of format and one
    of precision, and a concatenation of everything at the end. Not for `vmap`, which knows no memory formats.
    """

    @staticmethod
    def forward(
        flat: torch.Tensor, shapes: tuple[torch.Size, ...], dtypes: tuple[torch.dtype | None, ...]
    ) -> tuple[torch.Tensor, ...]:
        return tuple(
            part.view(shape).clone()
            if dtype is None
            else part.view(shape).to(dtype, memory_format=torch.channels_last, copy=True)
            for part, shape, dtype in zip(flat.split(_sizes(shapes)), shapes, dtypes, strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.shapes = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if tracing.is_on():  # a compiler makes one copy of this, and of what follows one for each weight
            return torch.cat([grad.float().reshape(-1) for grad in grads]), None, None
        sizes = _sizes(ctx.shapes)
        flat = grads[0].new_empty(sum(sizes), dtype=torch.float32)
        starts = accumulate(sizes, initial=0)
        for start, size, shape, grad in zip(starts, sizes, ctx.shapes, grads, strict=False):
            flat.narrow(0, start, size).view(shape).copy_(grad)
        return flat, None, None


def _sizes(shapes: tuple[torch.Size, ...]) -> list[int]:
    return [math.prod(shape) for shape in shapes]
