"""Weights with the channels last: the same gradient as autograd's own way there and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask, tracing
from acefl.tasks.channels_last import convolution_weights
from acefl.tasks.compute import gradient_of
from acefl.tasks.vision import NORMS, resnet18


class WithIdleConvolution(nn.Module):
    """Has a convolution that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Conv2d(3, 4, 3)
        self.used = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).mean((2, 3))


class Standardised(nn.Conv2d):
    """Computes with its weight before it convolves, and has another 4-d parameter."""

    def __init__(self) -> None:
        super().__init__(3, 4, 3)
        self.scale = nn.Parameter(torch.rand(1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return (self.scale * F.conv2d(x, weight)).mean((2, 3))


MODELS = {norm: lambda norm=norm: resnet18(classes=4, norm=norm, width=8) for norm in NORMS}
MODELS |= {"idle": WithIdleConvolution, "standardised": Standardised}


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
    images, targets = task._data.draw([1], [7])

    def plain(flat: torch.Tensor) -> torch.Tensor:
        """As a person would write it."""
        last = torch.channels_last
        views = [v.contiguous(memory_format=last) if v.dim() == 4 else v for v in task._net.views(flat)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            inputs = images[0].contiguous(memory_format=last)
            output = functional_call(task._net.module, dict(zip(task._net.names, views, strict=True)), inputs)
        return F.cross_entropy(output.float(), targets[0])

    found = grad(task._model.functional)(model, images[0], targets[0])
    assert found.dtype == torch.float32
    rounding = 1e-6 if name == "standardised" else 0.0  # its weight keeps its format, so its sums have another order
    torch.testing.assert_close(found, grad(plain)(model), rtol=0, atol=rounding)


def test_convolution_weights_alone_change_format_and_precision() -> None:
    task = task_of(resnet18(classes=4, norm="batch", width=8), bf16=True)
    for name, value in task._net.named(task.initial()).items():
        convolution = value.dim() == 4
        assert value.dtype == (torch.bfloat16 if convolution else torch.float32), name
        assert not convolution or value.is_contiguous(memory_format=torch.channels_last)
    assert convolution_weights(nn.Sequential(nn.Conv2d(3, 4, 3), Standardised(), nn.Linear(4, 4))) == {"0.weight"}


def test_channels_last_excludes_stacking() -> None:
    with pytest.raises(InvalidInput, match="compute='together' and channels_last exclude each other"):
        task_of(WithIdleConvolution(), compute="together")


def test_traced_for_a_compiler_parameters_are_not_written_one_by_one_and_the_gradient_stays() -> None:
    """Each write into a part of the flat gradient would cost a compiler a copy of the whole."""
    of = task_of(MODELS["group"]())
    inputs, targets = of._data.draw([0], [5])
    gradient = gradient_of(of._model.functional)
    graph = tracing.traced(lambda m, x, y: gradient(m, x, y), of.initial(), inputs[0], targets[0])
    writes = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(writes) < len(of._net.names) / 10
    torch.testing.assert_close(
        graph(of.initial(), inputs[0], targets[0]), of._model.gradient(of.initial(), inputs[0], targets[0])
    )
