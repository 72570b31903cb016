"""Products in compiled gradients: those of torch within rounding, whatever their sizes and strides, and the same bits
whatever else is in the call."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from acefl.tasks import inductor, linear_layers, products, tracing

pytestmark = pytest.mark.skipif(
    not linear_layers.mkl_uses_half(), reason="on this processor products are left to torch"
)
SIZES = ((1, 1, 1), (20, 64, 10), (7, 17, 16), (6, 16, 64), (13, 50, 65), (64, 20, 200), (5, 33, 129))  # m, k, n
Call = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor]]
EVERY = sum(rows * depth for rows, depth, _ in SIZES), sum(depth * columns for _, depth, columns in SIZES)


def products_of(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor]:
    """Products of all these sizes, of matrices that lie one after another in the rows, in every order of strides."""
    firsts = one.split([rows * depth for rows, depth, _ in SIZES], 1)
    seconds = other.split([depth * columns for _, depth, columns in SIZES], 1)
    found = []
    for (rows, depth, columns), first, second in zip(SIZES, firsts, seconds, strict=True):
        for left in (first.reshape(-1, rows, depth), first.reshape(-1, depth, rows).transpose(1, 2)):
            for right in (second.reshape(-1, depth, columns), second.reshape(-1, columns, depth).transpose(1, 2)):
                found.append(torch.bmm(left, right).flatten(1))
    return (torch.cat(found, 1),)


@pytest.fixture(scope="module")
def compiled() -> Callable[[list[torch.Tensor]], torch.Tensor]:
    examples = [torch.ones(2, size) for size in EVERY]
    graph = tracing.traced_for_any_number(products_of, *examples)
    return inductor.compiled(graph, examples, any_number=True)


def drawn(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(count, size, generator=generator) for size in EVERY]


@pytest.mark.parametrize("count", [2, 5, 16])
def test_they_are_those_of_torch(compiled: Callable[[list[torch.Tensor]], torch.Tensor], count: int) -> None:
    """Sums of at most 65 terms near 1: rounding is far below the tolerance, one wrong term far above."""
    given = drawn(count)
    [exact] = products_of(*(tensor.double() for tensor in given))
    torch.testing.assert_close(compiled(given).double(), exact, rtol=0, atol=1e-4)


def test_none_depends_on_what_else_is_in_the_call(compiled: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    given = drawn(16)
    whole = compiled(given)
    for start in (0, 3, 14):
        part = [tensor[start : start + 2].contiguous() for tensor in given]
        assert torch.equal(compiled(part), whole[start : start + 2])


def test_they_are_put_in_place_of_torchs() -> None:
    examples = [torch.ones(2, size) for size in EVERY]
    graph = products.put_in(tracing.traced_for_any_number(products_of, *examples))
    assert graph is not None
    assert "aten.bmm" not in graph.code
    assert graph.code.count("acefl.product") == 4 * len(SIZES)


def test_other_numbers_and_graphs_without_products_are_left_to_torch() -> None:
    def halved(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.bmm(x.bfloat16(), y.bfloat16()).float(),)

    x = torch.ones(2, 3, 3)
    assert products.put_in(tracing.traced(halved, x, x)) is None
    assert products.put_in(tracing.traced(lambda x: (x + 1,), x)) is None


def test_a_compiler_that_does_not_take_them_leaves_them_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "source", lambda: "AOTITorchError no_cpp(;")
    x = torch.randn(2, 3, 3)
    graph = tracing.traced(lambda x, y: (torch.bmm(x, y),), x, x)
    with caplog.at_level(logging.INFO, "acefl"):
        run = inductor.compiled(graph, [x, x])
    torch.testing.assert_close(run([x, x]), torch.bmm(x, x))
    assert "the compiler does not take our products" in caplog.text
