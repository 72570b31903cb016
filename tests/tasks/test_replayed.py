"""What a GPU replays: calls of fixed sizes that serve any number of clients, one by one's gradients, compiled or not.

Capturing needs a GPU, so here a stand-in computes what a graph would hold, on the same static buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from acefl.core import rng as keyed
from acefl.tasks import TorchTask, compute, group_norm, inductor, tracing
from acefl.tasks.compute import Beside, OneByOne, Replayed, Stacked, gradient_of
from acefl.tasks.shared_weights import SharedWeights

CLOSE = 1e-5  # of the largest entry, in float32


class Graph:
    """Computes when it is replayed; buffers, and rows beyond those given, are as in a CUDA graph."""

    def __init__(self, compute: Callable[..., torch.Tensor], size: int, models: torch.Tensor, pool: Any) -> None:
        self._compute, self._models, self._who = compute, models, torch.zeros(2, size, dtype=torch.int64)

    def replay(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        self._models[: len(models)] = models
        self._who[:, : len(clients)] = torch.tensor([clients, [keyed.signed(k) for k in keys]])
        return self._compute(self._models, *self._who)[: len(clients)].clone()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_Captured", Graph)
    monkeypatch.setattr(inductor, "compiled", lambda graph, examples, any_number=False: lambda given: graph(*given)[0])


def task(**more: Any) -> TorchTask:
    torch.manual_seed(0)
    data = [(torch.randn(9, 6), torch.randint(0, 3, (9,))) for _ in range(7)]
    return TorchTask(
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), nn.CrossEntropyLoss(), data, batch=4, **more
    )


def captured(**more: Any) -> TorchTask:
    """A task as a GPU has it."""
    of = task(**more)
    of.compute = Replayed(Stacked(gradient_of(of._model.functional)), of._data.gather)
    return of


def someones(of: TorchTask, count: int) -> tuple[torch.Tensor, list[int], list[int]]:
    torch.manual_seed(1)
    models = of.initial() + 0.3 * torch.randn(count, len(of.initial()))
    return models, [k % of.clients for k in range(count)], [keyed.key(7, k) for k in range(count)]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("count", [1, 3, 8, 9, 21])
def test_any_number_of_small_models_is_each_alone(count: int, compiled: bool) -> None:
    of = task()
    strategy = Replayed(Stacked(gradient_of(of._model.functional)), of._data.gather)
    strategy = strategy.compiled() if compiled else strategy
    drawn = someones(of, count)
    for _ in range(2):  # the second time on buffers that hold something
        close(strategy(*drawn), OneByOne(of._model.gradient, of._data.draw)(*drawn))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5, 7, 10, 23])
def test_any_number_of_clients_on_one_model_is_each_alone(count: int, compiled: bool, stacked: bool) -> None:
    of = task()
    large = SharedWeights(of._net, of._model.output, of._model.loss, of._data.draw).over
    at_one_model = Stacked(gradient_of(of._model.functional)).at_one_model if stacked else large
    strategy = Replayed(at_one_model, of._data.gather, shared=True, sizes=(5, 10))
    strategy = strategy.compiled() if compiled else strategy
    models, clients, keys = someones(of, count)
    expected = OneByOne(of._model.gradient, of._data.draw)(models[:1].expand(count, -1), clients, keys)
    close(strategy(models[:1], clients, keys), expected)


@pytest.mark.parametrize("alike", [False, True])
def test_what_is_compiled_computes_clients_on_one_model_together_where_that_comes_again(alike: bool) -> None:
    of = captured()
    run = of.for_run(0, True, alike)
    assert run.compute.name == "compiled cuda-graph"
    assert (run.shared_limit > 0) == alike
    drawn = someones(of, 6)
    close(run.updates(*drawn), OneByOne(of._model.gradient, of._data.draw)(*drawn))
    if alike:
        models, clients, keys = drawn
        expected = OneByOne(of._model.gradient, of._data.draw)(models[:1].expand(6, -1), clients, keys)
        close(run.shared_updates(models[0], clients, keys), expected)
    assert captured(local="sgd(lr=0.1, steps=2)").for_run(0, True).shared_limit == 0


@pytest.mark.parametrize("size", [4, 8])
def test_what_does_not_compile_is_as_it_was(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Whichever size it is: later, in the middle of a run, nobody could help it."""

    def fails(graph: Any, examples: Any) -> Any:
        if len(examples[0]) == size:
            raise RuntimeError("no compiler")
        return lambda given: graph(*given)[0]

    of = captured()
    monkeypatch.setattr(inductor, "compiled", fails)
    assert of.for_run(0, True) is of


def test_models_too_large_for_several_at_once_do_not_share() -> None:
    of = captured()
    of._net.vector = torch.zeros(2**27)  # of which a call has two
    assert of._strategies.shared_compiled is None


def test_no_more_are_captured_than_fit() -> None:
    sizes = compute._CAPTURED_SIZES
    assert [compute._one_call(sizes, 10, count) for count in (1, 9, 10)] == [[1], [10], [10]]
    assert compute._one_call(sizes, None, 9) == [12]


def test_a_call_of_large_models_is_at_most_one_client_too_large() -> None:
    for count in range(1, 65):
        [size] = compute._one_call(compute._CAPTURED_SHARED, None, count)
        assert count <= size <= count + 1


def test_large_models_are_compiled_one_by_one() -> None:
    of = task()
    strategy = Replayed(Beside(gradient_of(of._model.functional)), of._data.gather).compiled()
    drawn = someones(of, 1)
    close(strategy(*drawn), OneByOne(of._model.gradient, of._data.draw)(*drawn))
    assert strategy.name == "compiled cuda-graph"


@given(small=st.integers(1, 20), more=st.integers(1, 20), count=st.integers(1, 200))
def test_two_sizes_serve_every_number_and_waste_less_than_one_call(small: int, more: int, count: int) -> None:
    sizes = compute._two_sizes(small, small + more, count)
    assert set(sizes) <= {small, small + more}
    assert 0 <= sum(sizes) - count < small + more
    assert sum(sizes[:-1]) < count


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("last", [False, True])
def test_group_norm_in_parts_is_group_norm_and_keeps_the_format(affine: bool, last: bool) -> None:
    torch.manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    norm = nn.GroupNorm(4, 8, affine=affine)
    x, upward = (torch.randn(3, 8, 5, 4).contiguous(memory_format=form) for _ in range(2))
    own = [p.detach() + 0.1 for p in norm.parameters()]

    def both_ways(x: torch.Tensor, upward: torch.Tensor, *own: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in (x, *own)]
        y = torch.nn.functional.group_norm(leaves[0], 4, *leaves[1:])
        return [y.detach(), *torch.autograd.grad(y, leaves, upward)]

    graph = tracing.traced(both_ways, x, upward, *own, instead=group_norm.IN_PARTS)
    assert not any("group_norm" in str(node.target) for node in graph.graph.nodes)
    found = graph(x, upward, *own)
    for ours, theirs in zip(found, both_ways(x, upward, *own), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert all(t.is_contiguous(memory_format=form) for t in found[:2])


def test_constants_become_arguments_once_each() -> None:
    kept, scale = torch.randn(3), torch.randn(3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * kept + scale * kept,)

    graph = tracing.traced(function, torch.randn(3))
    values = inductor._constants_as_arguments(graph)
    assert len(values) == 2
    x = torch.randn(3)
    assert torch.equal(graph(*values, x)[0], function(x)[0])


def test_what_a_gpu_compiles_has_its_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same call, here for a CPU; every call may have other numbers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kept = torch.randn(3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * kept).tanh() + kept,)

    call = inductor._in_process(tracing.traced(function, torch.randn(3)), [torch.randn(3)])
    for x in (torch.randn(3), torch.randn(3)):
        torch.testing.assert_close(call([x]), function(x)[0])


def test_what_a_gpu_compiles_is_compiled_once_for_the_same_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whatever constants: tasks of one study differ in data and first models alone."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor

    monkeypatch.setattr(inductor, "_made", {})
    compiled: list[int] = []
    usual = torch._inductor.standalone_compile

    def counted(*given: Any, **options: Any) -> Any:
        compiled.append(1)
        return usual(*given, **options)

    monkeypatch.setattr(torch._inductor, "standalone_compile", counted)
    for kept in (torch.randn(3), torch.randn(3), torch.randn(4)):
        x = torch.randn_like(kept)
        call = inductor._in_process(tracing.traced(_scaled_by(kept), x), [x])
        torch.testing.assert_close(call([x]), x * kept)
    assert len(compiled) == 2


def _scaled_by(kept: torch.Tensor) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    return lambda x: (x * kept,)
