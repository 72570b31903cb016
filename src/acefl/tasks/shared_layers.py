"""Layers whose trained weights many clients share: one batch of all clients' samples, a gradient for each client.

The samples are those of the first client, then those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from acefl.tasks import batch_norm

_aten = torch.ops.aten


class Shared:
    """A weight of all clients. Some layers take it; any other use is an error, so that none goes unnoticed.

    `copies` stands for one per client: its gradient is theirs. It takes no more memory than the one.
    """

    def __init__(self, value: torch.Tensor, count: int) -> None:
        self.value, self.dtype, self.device = value, value.dtype, value.device
        self.copies = value.detach().expand(count, *value.shape).requires_grad_()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _LAYERS:
            raise TypeError(f"a trained weight is used by {getattr(func, '__name__', func)}, which is not known")
        return _LAYERS[func](*args, **(kwargs or {}))


Weight = torch.Tensor | Shared | None  # frozen ones are tensors


def _linear(x: torch.Tensor, weight: Weight, bias: Weight = None) -> torch.Tensor:
    y = _product(_Linear, F.linear, x, weight)
    return _affine(y, None, bias, y.dim() - 1)


def _conv2d(
    x: torch.Tensor,
    weight: Weight,
    bias: Weight = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    if groups != 1 or x.dim() != 4 or isinstance(padding, str):
        raise TypeError("a convolution in groups, or padded by name, is not known")
    settings = [list(given) if isinstance(given, tuple) else [given] * 2 for given in (stride, padding, dilation)]
    return _affine(_product(_Convolution, F.conv2d, x, weight, *settings), None, bias, 1)


def _product(shared: Any, usual: Any, x: torch.Tensor, weight: Weight, *settings: list[int]) -> torch.Tensor:
    """In the precision that autocast wants, as the usual function does by itself."""
    y: torch.Tensor
    if isinstance(weight, Shared):
        kind, value = x.device.type, weight.value
        if torch.is_autocast_enabled(kind):
            x, value = x.to(torch.get_autocast_dtype(kind)), value.to(torch.get_autocast_dtype(kind))
        y = shared.apply(x, weight.copies, value, *settings)
    else:
        y = usual(x, weight, None, *settings)
    return y


def _embedding(rows: torch.Tensor, weight: Shared, padding_idx: int | None = None, **settings: Any) -> torch.Tensor:
    if settings["max_norm"] is not None or settings["scale_grad_by_freq"] or settings["sparse"]:
        raise TypeError("an embedding that changes its weight, or with other gradients, is not known")
    padding = -1 if padding_idx is None else padding_idx % len(weight.value)
    found: torch.Tensor = _Embedding.apply(rows, weight.copies, weight.value, padding)  # type: ignore[no-untyped-call]
    return found


def _group_norm(
    x: torch.Tensor, groups: int, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> torch.Tensor:
    return _affine(F.group_norm(x, groups, None, None, eps), weight, bias, 1)


def _layer_norm(
    x: torch.Tensor, shape: Any, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> torch.Tensor:
    return _affine(F.layer_norm(x, shape, None, None, eps), weight, bias, x.dim() - len(shape))


def _batch_norm(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    weight: Weight = None,
    bias: Weight = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Each client's samples by statistics of their own."""
    if not training:
        return _affine(F.batch_norm(x, mean, variance, None, None, False, momentum, eps), weight, bias, 1)
    rows = x.unflatten(0, (_count(weight, bias), -1)).float()
    own_variance, own_mean = torch.var_mean(rows, _all_but_channels(rows), correction=0, keepdim=True)
    normalised = (rows - own_mean) * torch.rsqrt(own_variance + eps)
    return _affine(normalised.flatten(0, 1), weight, bias, 1).to(x.dtype)


def _towards_seen(y: torch.Tensor, x: torch.Tensor, mean: Weight, variance: Weight) -> torch.Tensor:
    rows = x.detach().float().unflatten(0, (_count(mean, variance), -1))
    seen_variance, seen_mean = torch.var_mean(rows, _all_but_channels(rows))
    for kept, seen in ((mean, seen_mean), (variance, seen_variance)):
        own = kept.copies if isinstance(kept, Shared) else kept
        y = batch_norm.Towards.apply(y, own, seen)  # type: ignore[no-untyped-call]
    return y


_LAYERS: dict[Any, Callable[..., torch.Tensor]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.embedding: _embedding,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    batch_norm.towards_seen: _towards_seen,
}


def _count(*given: Weight) -> int:
    """Of clients, as a shared weight among these knows it."""
    return next((len(one.copies) for one in given if isinstance(one, Shared)), 1)


def _all_but_channels(rows: torch.Tensor) -> list[int]:
    """Of (clients, samples, channels, ...): what statistics of a client's batch are taken over."""
    return [dim for dim in range(1, rows.dim()) if dim != 2]


def _affine(y: torch.Tensor, weight: Weight, bias: Weight, first: int) -> torch.Tensor:
    """Times each client's weight, plus its bias, which are for y's dimensions from the first one on."""
    rows = y.unflatten(0, (_count(weight, bias), -1))
    if weight is not None:
        rows = rows * _beside(rows, weight, first)
    if bias is not None:
        rows = rows + _beside(rows, bias, first)
    out: torch.Tensor = rows.flatten(0, 1).to(y.dtype)
    return out


def _beside(rows: torch.Tensor, given: torch.Tensor | Shared, first: int) -> torch.Tensor:
    own = given.copies if isinstance(given, Shared) else given.unsqueeze(0)
    return own.view(len(own), *[1] * first, *own.shape[1:], *[1] * (rows.dim() - first - own.dim()))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, copies: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, value)
        ctx.count = len(copies)
        return F.linear(x, value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,), (x, value) = grads, ctx.saved_tensors
        before, after = (t.reshape(ctx.count, -1, t.shape[-1]) for t in (x, grad))
        return grad @ value if ctx.needs_input_grad[0] else None, torch.bmm(after.transpose(1, 2), before), None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, copies: torch.Tensor, value: torch.Tensor, *settings: list[int]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, value)
        ctx.count, ctx.settings = len(copies), settings
        y: torch.Tensor = _aten.convolution(x, value, None, *settings, False, [0, 0], 1)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,), (x, value) = grads, ctx.saved_tensors
        before = _convolution_gradient(grad, x, value, ctx.settings, 0) if ctx.needs_input_grad[0] else None
        return before, _weight_gradients(grad, x, value, ctx.settings, ctx.count), *[None] * 4


def _weight_gradients(
    grad: torch.Tensor, x: torch.Tensor, value: torch.Tensor, settings: tuple[list[int], ...], count: int
) -> torch.Tensor:
    """(clients, ...): of each client's samples, one convolution after another."""
    parts = zip(grad.chunk(count), x.chunk(count), strict=True)
    return torch.stack([_convolution_gradient(own, theirs, value, settings, 1) for own, theirs in parts])


def _convolution_gradient(
    grad: torch.Tensor, x: torch.Tensor, value: torch.Tensor, settings: tuple[list[int], ...], of: int
) -> torch.Tensor:
    """By x (0) or by the weight (1)."""
    wanted = [of == 0, of == 1, False]
    found: torch.Tensor = _aten.convolution_backward(grad, x, value, None, *settings, False, [0, 0], 1, wanted)[of]
    return found


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, copies: torch.Tensor, value: torch.Tensor, padding: int) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.count, ctx.size, ctx.padding = *copies.shape[:2], padding
        return F.embedding(rows, value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = zip(grads[0].chunk(ctx.count), ctx.saved_tensors[0].chunk(ctx.count), strict=True)
        found = [_aten.embedding_dense_backward(own, rows, ctx.size, ctx.padding, False) for own, rows in parts]
        return None, torch.stack(found), None, None
