"""GroupNorm in operations that keep a memory format, for the compiler.

The one operation that torch has for it gives rows in the usual format, whatever it was given. A compiler that is told
so puts a change of format on both sides of every convolution.
"""

from __future__ import annotations

from typing import Any

import torch

_aten = torch.ops.aten
_Maybe = torch.Tensor | None


def _forward(
    x: torch.Tensor, weight: _Maybe, bias: _Maybe, samples: int, channels: int, places: int, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = x.float().unflatten(1, (groups, -1))
    variance, mean = torch.var_mean(rows, dim=_within(rows), correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    y = ((rows - mean) * scale).flatten(1, 2)
    y = y if weight is None else y * _by_channel(weight, y)
    y = y if bias is None else y + _by_channel(bias, y)
    return y.to(x.dtype), mean.view(samples, groups), scale.view(samples, groups)


def _backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: _Maybe,
    samples: int,
    channels: int,
    places: int,
    groups: int,
    wanted: list[bool],
) -> tuple[_Maybe, _Maybe, _Maybe]:
    rows = x.float().unflatten(1, (groups, -1))
    mean, scale = (kept.view(samples, groups, *[1] * (rows.dim() - 2)) for kept in (mean, scale))
    normal, grad = (rows - mean) * scale, grad.float()
    over = [dim for dim in range(grad.dim()) if dim != 1]
    by_weight = (grad * normal.flatten(1, 2)).sum(over) if wanted[1] else None
    by_bias = grad.sum(over) if wanted[2] else None
    if not wanted[0]:
        return None, by_weight, by_bias
    grad = (grad if weight is None else grad * _by_channel(weight, grad)).unflatten(1, (groups, -1))
    along = (grad * normal).mean(_within(rows), keepdim=True)
    by_x = scale * (grad - grad.mean(_within(rows), keepdim=True) - normal * along)
    return by_x.flatten(1, 2).to(x.dtype), by_weight, by_bias


def _within(rows: torch.Tensor) -> list[int]:
    """Of (samples, groups, channels of a group, ...): what a group's statistics are of."""
    return list(range(2, rows.dim()))


def _by_channel(given: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return given.view(-1, *[1] * (rows.dim() - 2))


IN_PARTS: dict[Any, Any] = {
    _aten.native_group_norm.default: _forward,
    _aten.native_group_norm_backward.default: _backward,
}
