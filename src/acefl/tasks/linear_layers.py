"""Large linear layers on AMD processors, by oneDNN.

On a CPU torch multiplies matrices by MKL, which uses AVX-512 on Intel's processors alone. oneDNN, which torch brings
too, uses it on AMD's as well: a product of large matrices in float32 then takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

_LARGE = 2**16  # weights; so small models keep their bits, whatever they are evaluated on
_WORTH_IT = 2**22  # multiplications: fewer take less time than the way to oneDNN


def gains(module: nn.Module) -> bool:
    """Whether a module has linear layers that oneDNN computes faster on this machine."""
    large = any(isinstance(layer, nn.Linear) and layer.weight.numel() >= _LARGE for layer in module.modules())
    return large and mkl_uses_half()


@cache
def mkl_uses_half() -> bool:
    """Whether the processor has AVX-512 and MKL does not use it, but vectors half as wide."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()
    try:
        return wide and "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return False


class OneDNN(TorchFunctionMode):
    """`torch.nn.functional.linear` of large float32 matrices, in plain autograd, is computed by oneDNN."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs and _fits(*args):
            return _Linear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _fits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    plain = type(x) is torch.Tensor and type(weight) in (torch.Tensor, nn.Parameter)
    return (
        plain
        and weight.numel() >= _LARGE
        and x.numel() * len(weight) >= _WORTH_IT
        and x.dtype == weight.dtype == torch.float32
        and (bias is None or bias.dtype == torch.float32)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x times the transposed weight, plus the bias."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, by_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x, by_weight, *by_bias = ctx.needs_input_grad
        product = _Linear.apply if torch.is_grad_enabled() else _product  # differentiable again, for a penalty on it
        rows = by_output.reshape(-1, by_output.shape[-1])
        found = (
            product(by_output, weight.t()) if by_x else None,
            product(rows.t(), x.reshape(-1, x.shape[-1]).t()) if by_weight else None,
            rows.sum(0) if any(by_bias) else None,
        )
        return found[: len(ctx.needs_input_grad)]
