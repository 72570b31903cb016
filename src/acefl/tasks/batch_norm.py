"""BatchNorm among clients that send gradients: its running statistics are no gradient's to carry.

A model that keeps them is refused, and made fit in one of two ways: `batch_statistics` drops them, `carried_statistics`
makes them part of the model that travels. In a frozen backbone they are frozen like the rest, and stay.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import handle_torch_function, has_torch_function

from acefl.core.errors import InvalidInput


def refuse_running_statistics(model: nn.Module) -> None:
    """A model that keeps statistics beside its parameters would be evaluated with what nobody updated."""
    frozen = set(frozen_norms(model))
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and module not in frozen:
            raise InvalidInput(
                f"layer {name or type(module).__name__!r} keeps BatchNorm running statistics, which updates do not "
                "carry; allowed: GroupNorm, or acefl.tasks.batch_statistics(model) or carried_statistics(model)"
            )


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Layers of a frozen backbone, which normalise by the statistics they came with: they have nothing to train."""
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    return [m for m in norms if list(m.parameters()) and not any(p.requires_grad for p in m.parameters())]


def uses_batch_statistics(model: nn.Module) -> bool:
    """Whether a sample's output depends, in training, on which others are in its batch."""
    frozen = set(frozen_norms(model))
    return any(isinstance(module, _NormBase) and module not in frozen for module in model.modules())


def batch_statistics(model: nn.Module) -> nn.Module:
    """The same model with every BatchNorm normalising by its current batch, in training and evaluation alike.

    Args:
        model: A module; it is changed in place.
    """
    for module in model.modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


def carried_statistics(model: nn.Module) -> nn.Module:
    """The same model with running statistics that travel in its parameters: see `CarriedBatchNorm`.

    Layers of a frozen backbone stay as they are.

    Args:
        model: A module; it is changed in place.
    """
    return _carried(model, set(frozen_norms(model)))


def _carried(module: nn.Module, frozen: set[nn.Module]) -> nn.Module:
    if isinstance(module, _BatchNorm) and module.track_running_stats and module not in frozen:
        return CarriedBatchNorm.of(module)
    for name, child in module.named_children():
        setattr(module, name, _carried(child, frozen))
    return module


class CarriedBatchNorm(_BatchNorm):
    """Normalises by the batch in training and by carried statistics in evaluation.

    A carried statistic is a parameter whose gradient is itself minus what the batch showed. A step of the server then
    moves it by lr towards what clients saw: the running mean that BatchNorm keeps by itself, with lr as its momentum.
    Whatever a rule does for gradients it does for statistics, so ACE's are the mean over all clients. An lr above 2
    makes them swing.
    """

    def __init__(self, channels: int, **settings: Any) -> None:
        super().__init__(channels, **{**settings, "track_running_stats": False})
        self.carried_mean = nn.Parameter(torch.zeros(channels))
        self.carried_var = nn.Parameter(torch.ones(channels))

    @classmethod
    def of(cls, norm: _BatchNorm) -> CarriedBatchNorm:
        """With the parameters and the statistics of a BatchNorm that kept them beside."""
        own = cls(norm.num_features, eps=norm.eps, affine=norm.affine)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        with torch.no_grad():
            own.carried_mean.copy_(norm.running_mean)
            own.carried_var.copy_(norm.running_var)
            if norm.affine:
                own.weight.copy_(norm.weight)
                own.bias.copy_(norm.bias)
                own.weight.requires_grad_(norm.weight.requires_grad)
                own.bias.requires_grad_(norm.bias.requires_grad)
        return own

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of dimensions after the channels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            mean, variance = self.carried_mean.detach(), self.carried_var.detach().clamp(min=0.0)
            return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        output = F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        return towards_seen(output, input, self.carried_mean, self.carried_var)


def towards_seen(output: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Lets the output through, and gives the carried statistics their gradients; what stands in for them may do it."""
    if has_torch_function((mean, variance)):
        found: torch.Tensor = handle_torch_function(towards_seen, (mean, variance), output, input, mean, variance)
        return found
    over = [dim for dim in range(input.dim()) if dim != 1]
    seen_variance, seen_mean = torch.var_mean(input.detach().float(), over)
    passed: torch.Tensor = Towards.apply(output, mean, seen_mean)  # type: ignore[no-untyped-call]
    passed = Towards.apply(passed, variance, seen_variance)  # type: ignore[no-untyped-call]
    return passed


class Towards(torch.autograd.Function):
    """Lets a value through, and gives `kept` the gradient of half its squared distance from `seen`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: torch.Tensor, kept: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        kept, seen = ctx.saved_tensors
        return grads[0], kept - seen, None
