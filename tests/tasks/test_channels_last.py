"""Weights with the channels last: the same gradient as autograd's own way there and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from acefl.errors import InvalidInput
from acefl.tasks import TorchTask
from acefl.tasks.compute import OneByOne
from acefl.tasks.vision import NORMS, resnet18


class WithIdleConvolution(nn.Module):
    """Has a convolution that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Conv2d(3, 4, 3)
        self.used = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).mean((2, 3))


MODELS = {norm: lambda norm=norm: resnet18(classes=4, norm=norm, width=8) for norm in NORMS}
MODELS["idle"] = WithIdleConvolution


def task_of(model: nn.Module, **options: object) -> TorchTask:
    torch.manual_seed(1)
    data = [(torch.rand(9, 3, 16, 16), torch.randint(4, (9,))) for _ in range(2)]
    return TorchTask(model, nn.CrossEntropyLoss(), data, batch=6, channels_last=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_separate_changes_of_format_and_precision(name: str, bf16: bool) -> None:
    torch.manual_seed(0)
    task = task_of(MODELS[name](), bf16=bf16, compute="one-by-one")
    model = task.initial()
    images, targets = task._draw([1], [7])

    def plain(flat: torch.Tensor) -> torch.Tensor:
        """As a person would write it."""
        last = torch.channels_last
        views = [v.contiguous(memory_format=last) if v.dim() == 4 else v for v in task._views(flat)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            inputs = images[0].contiguous(memory_format=last)
            output = functional_call(task._module, dict(zip(task._names, views, strict=True)), inputs)
        return F.cross_entropy(output.float(), targets[0])

    found = grad(task._functional_loss)(model, images[0], targets[0])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, grad(plain)(model), rtol=0, atol=0)


def test_small_models_with_channels_last_are_not_stacked() -> None:
    assert isinstance(task_of(WithIdleConvolution()).compute, OneByOne)
    with pytest.raises(InvalidInput, match="compute='together' and channels_last exclude each other"):
        task_of(WithIdleConvolution(), compute="together")
