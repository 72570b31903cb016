"""Traced functions without idle operations: the same bits from fewer calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from acefl.tasks.tracing import traced, traced_for_any_number

MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "normalised": lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 4])
def test_fewer_calls_and_the_same_bits(name: str, count: int) -> None:
    torch.manual_seed(0)
    module = MODELS[name]()
    parameters = {key: torch.randn(count, *value.shape) for key, value in module.named_parameters()}

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(module, own, (x,)), y)

    def gradient(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.reshape(len(x), -1) for part in vmap(grad(loss))(own, x, y).values()], dim=1)

    examples = parameters, torch.randn(count, 4, 6), torch.randint(3, (count, 4))
    full, short = make_fx(gradient)(*examples), traced(gradient, *examples)
    others = {key: -value for key, value in parameters.items()}, examples[1] + 1, 2 - examples[2]
    for given in (examples, others):
        assert torch.equal(short(*given), full(*given))
    assert len(short.graph.nodes) < 0.8 * len(full.graph.nodes)


def test_shapes_are_noted_in_one_mode() -> None:
    graph = traced(vmap(grad(lambda model, x: (model * x).sum().tanh())), torch.randn(3, 4), torch.randn(3, 4)).graph
    noted = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert len(noted) > 2
    assert len({id(value.fake_mode) for value in noted}) == 1


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_is_for_any_number_of_models(name: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]()
    names, shapes = zip(*((key, value.shape) for key, value in module.named_parameters()), strict=True)

    def loss(own: tuple[torch.Tensor, ...], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(module, dict(zip(names, own, strict=True)), (x,)), y)

    def gradients(x: torch.Tensor, y: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.reshape(len(x), -1) for part in vmap(grad(loss))(own, x, y)], dim=1)

    def given(count: int) -> tuple[torch.Tensor, ...]:
        own = (torch.randn(count, *shape) for shape in shapes)
        return (torch.randn(count, 4, 6), torch.randint(3, (count, 4)), *own)

    graph = traced_for_any_number(gradients, *given(2))
    for count in (1, 2, 3, 4, 7, 12):
        case = given(count)
        assert torch.equal(graph(*case), gradients(*case))


def test_what_depends_on_the_number_otherwise_than_by_shapes_has_no_such_graph() -> None:
    with pytest.raises(ValueError, match="depend on the number of models"):
        traced_for_any_number(lambda x: x / len(x) ** 2, torch.ones(2, 4))
    with pytest.raises(ValueError, match="depend on the number of models"):
        traced_for_any_number(lambda x: x if len(x) < 4 else 2 * x, torch.ones(2, 4))
    with pytest.raises(ValueError, match="depend on the number of models"):
        traced_for_any_number(lambda x: x + torch.tensor(float(len(x))), torch.ones(2, 4))


def test_tensors_may_be_given_by_name() -> None:
    graph = traced_for_any_number(
        lambda x, y: torch.ops.aten.clamp.Tensor(x, min=y), torch.ones(2, 4), torch.ones(2, 4)
    )
    x, y = torch.randn(7, 4), torch.randn(7, 4)
    assert torch.equal(graph(x, y), x.maximum(y))


def test_what_is_returned_may_be_written_to() -> None:
    constant = traced(lambda x: torch.ops.aten.scalar_tensor.default(2.0) * torch.ones(3), torch.zeros(3))
    constant(torch.zeros(3)).zero_()
    assert constant(torch.zeros(3)).tolist() == [2.0, 2.0, 2.0]


def test_what_is_only_looked_at_for_its_shape_is_not_computed() -> None:
    short = traced(lambda x: torch.ones_like((x * 2).exp().sum(0)) / x.sum(0), torch.ones(4, 3))
    assert not any("exp" in str(node.target) for node in short.graph.nodes)
    x = torch.randn(4, 3)
    assert torch.equal(short(x), 1.0 / x.sum(0))


def test_a_function_that_writes_keeps_its_copies() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        first, second = x * 2, x * 2
        first.add_(1)
        return first - second

    x = torch.randn(5)
    assert torch.equal(traced(writes, torch.zeros(5))(x), writes(x))
