"""Large linear layers by oneDNN: outputs and gradients are those of plain PyTorch, within 1e-5 of the largest entry.

oneDNN is in every build of torch, so this is tested on any processor; whether a task uses it depends on the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acefl import ASGD, Stop, simulate
from acefl.tasks import TorchTask, linear_layers
from acefl.tasks.flat_module import FlatModule
from acefl.tasks.linear_layers import OneDNN

CLOSE = 1e-5


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max()) <= CLOSE * float(expected.abs().max())


def by_onednn(output: torch.Tensor) -> bool:
    assert output.grad_fn is not None
    return "_Linear" in output.grad_fn.name()


@settings(max_examples=40)
@given(
    leading=st.sampled_from([(48,), (3, 16), (2, 2, 12), (1, 64)]),
    inputs=st.sampled_from([256, 300, 513]),
    outputs=st.sampled_from([384, 401]),
    bias=st.booleans(),
    wanted=st.sampled_from(["all", "input", "weight"]),
    transposed=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_gradients_are_those_of_plain_torch(
    leading: tuple[int, ...], inputs: int, outputs: int, bias: bool, wanted: str, transposed: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(*leading, inputs, generator=draw)
    if transposed:  # not contiguous
        x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    weight = torch.randn(outputs, inputs, generator=draw).requires_grad_(wanted != "input")
    x.requires_grad_(wanted != "weight")
    given = [x, weight, *([torch.randn(outputs, generator=draw, requires_grad=wanted == "all")] if bias else [])]
    by = torch.randn(*leading, outputs, generator=draw)
    chosen = [tensor for tensor in given if tensor.requires_grad]
    plain = F.linear(*given)
    with OneDNN():
        output = F.linear(*given)
    assert by_onednn(output)
    assert not by_onednn(plain)
    assert close(output, plain)
    expected, found = (torch.autograd.grad(one, chosen, by) for one in (plain, output))
    assert all(close(own, other) for own, other in zip(found, expected, strict=True))


def test_a_gradient_can_be_differentiated_again() -> None:
    x, weight = torch.randn(64, 300), torch.randn(400, 300).mul_(0.05).requires_grad_()

    def penalty() -> torch.Tensor:
        x.requires_grad_()
        output = F.linear(x, weight).tanh().sum()
        (by_x,) = torch.autograd.grad(output, x, create_graph=True)
        return torch.autograd.grad(by_x.square().sum(), weight)[0]

    expected = penalty()
    with OneDNN():
        assert close(penalty(), expected)


def test_what_it_is_not_for_is_left_alone() -> None:
    x, weight = torch.randn(64, 300), torch.randn(400, 300, requires_grad=True)
    with OneDNN():
        assert by_onednn(F.linear(x, weight))
        assert not by_onednn(F.linear(x[:2], weight))  # few rows
        assert not by_onednn(F.linear(torch.randn(5_000, 64), torch.randn(64, 64, requires_grad=True)))  # a small layer
        assert not by_onednn(F.linear(x.double(), weight.double()))
        assert not by_onednn(F.linear(x.bfloat16(), weight.bfloat16()))
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(x, weight).dtype == torch.bfloat16

        def loss(weight: torch.Tensor) -> torch.Tensor:
            return F.linear(x, weight).square().mean()

        per_model = torch.func.vmap(torch.func.grad(loss))(weight.detach().expand(2, -1, -1))
    assert close(per_model[1], torch.func.grad(loss)(weight.detach()))


def test_only_a_module_with_a_large_layer_gains() -> None:
    assert not linear_layers.gains(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)))
    if not linear_layers.gains(nn.Linear(1024, 1024)):
        pytest.skip("on this processor MKL is as fast")


def test_modules_of_tasks_use_it_where_it_gains() -> None:
    net = FlatModule(nn.Linear(600, 600), torch.device("cpu"), bf16=False, channels_last=False)
    assert by_onednn(net(torch.randn(20, 600))) is linear_layers.gains(net.module)


def large() -> TorchTask:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(128, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 4))
    data = [(torch.randn(40, 128), torch.randint(4, (40,))) for _ in range(4)]
    return TorchTask(module, nn.CrossEntropyLoss(), data, batch=20)


def test_a_task_computes_the_gradients_of_its_module() -> None:
    """Whichever way this machine computes them."""
    task, own = large(), large().module(large().initial()).double()
    [gradient] = task.updates(task.initial().unsqueeze(0), [2], [7])
    inputs, targets = task._data.draw([2], [7])
    loss = nn.CrossEntropyLoss()(own(inputs[0].double()), targets[0])
    exact = torch.autograd.grad(loss, list(own.parameters()))
    assert close(gradient.double(), torch.cat([part.reshape(-1) for part in exact]))


@pytest.mark.parametrize("count", [1, 2])
def test_the_same_run_ends_in_the_same_bits(count: int) -> None:
    with threads(count):
        one, two = (simulate(large(), ASGD(), lr=0.1, stop=Stop(arrivals=20)) for _ in range(2))
    assert torch.equal(one.model, two.model)
