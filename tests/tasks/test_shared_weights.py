"""Clients at one model, through shared weights: each one's gradient is what it is alone, within 1e-5 of the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask
from acefl.tasks.tracing import traced
from acefl.tasks.vision import NORMS, resnet18, small_cnn

CLOSE = 1e-5  # of the largest entry of a client's gradient, in float32
CLIENTS = 5
WHO, KEYS = [0, 1, 2, 2, 4], [11, 12, 13, 14, 15]  # one client may be there twice


class Words(nn.Module):
    """An embedding with a padding row, and a norm over positions too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(7, 6, padding_idx=2), nn.LayerNorm([3, 6]), nn.Linear(6, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(words)).tanh()).mean(1)


class UsesALayerTwice(nn.Module):
    """And another one's weight, which it shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(self.first(x).tanh()).tanh()))


class Standing(nn.Sequential):
    """Weights of all kinds of which some are frozen."""

    def __init__(self) -> None:
        norms = nn.BatchNorm2d(4, track_running_stats=False), nn.GroupNorm(2, 6)
        convolutions = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 6, (3, 1), padding=(2, 0), dilation=(2, 1))
        ended = nn.Tanh(), nn.Flatten(), nn.Linear(6 * 16, 4)
        super().__init__(convolutions[0], norms[0], convolutions[1], norms[1], *ended)
        frozen = self[0].weight, self[1].bias, self[2].bias, self[3].weight, self[6].weight
        for parameter in frozen:
            parameter.requires_grad_(False)  # type: ignore[union-attr]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 4, bias=False))


def one_dimension() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, track_running_stats=False), nn.Tanh(), nn.Linear(7, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (5,)),
    "batch-norm-1d": (one_dimension, (5,)),
    "words": (Words, (3,)),
    "twice": (UsesALayerTwice, (5,)),
    "partly-frozen": (Standing, (3, 8, 8)),
    "small-cnn": (lambda: small_cnn(4, width=8, hidden=16), (3, 32, 32)),
    **{f"resnet18-{norm}": (lambda norm=norm: resnet18(4, norm, width=8), (3, 16, 16)) for norm in NORMS},
}
IMAGES = [name for name, (_, shape) in MODELS.items() if len(shape) == 3]


def task(model: nn.Module, shape: tuple[int, ...], compute: str = "shared", **more: Any) -> TorchTask:
    draw = torch.Generator().manual_seed(0)

    def inputs() -> torch.Tensor:
        words = torch.randint(0, 7, (9, *shape), generator=draw)
        return words if shape == (3,) else torch.randn(9, *shape, generator=draw)

    data = [(inputs(), torch.randint(0, 4, (9,), generator=draw)) for _ in range(CLIENTS)]
    loss = more.pop("loss", nn.CrossEntropyLoss())
    return TorchTask(model, loss, data, compute=compute, **{"batch": 4, **more})


def named(name: str, compute: str = "shared", **more: Any) -> TorchTask:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return task(make(), shape, compute, **more)


def moved(built: TorchTask) -> torch.Tensor:
    noise = torch.randn(len(built.initial()), generator=torch.Generator().manual_seed(1))
    return built.initial() + 0.05 * noise


def one_by_one(alone: TorchTask, model: torch.Tensor) -> torch.Tensor:
    assert alone.compute.name == "one-by-one"
    return alone.updates(model.repeat(len(WHO), 1), WHO, KEYS)


def assert_close(found: torch.Tensor, expected: torch.Tensor, close: float = CLOSE) -> None:
    """Row by row, by the largest entry of each."""
    assert found.dtype == torch.float32
    size = expected.abs().amax(1, keepdim=True)
    assert bool((size > 0).all())
    assert float(((found - expected).abs() / size).max()) < close


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("name", MODELS)
def test_shared_is_one_by_one(name: str, ridge: float) -> None:
    shared, alone = named(name, ridge=ridge), named(name, "one-by-one", ridge=ridge)
    model = moved(alone)
    expected = one_by_one(alone, model)
    assert_close(shared.shared_updates(model, WHO, KEYS), expected)
    assert_close(shared.shared_updates(model, WHO[:1], KEYS[:1]), expected[:1])


@pytest.mark.parametrize("name", IMAGES)
def test_with_channels_last(name: str) -> None:
    shared, alone = named(name, channels_last=True), named(name, "one-by-one", channels_last=True)
    model = moved(alone)
    assert_close(shared.shared_updates(model, WHO, KEYS), one_by_one(alone, model))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["mlp", *IMAGES])
def test_in_bfloat16_it_is_as_far_from_float32_as_one_by_one_is(name: str, channels_last: bool) -> None:
    """Within half: entries themselves differ, since rounding moves what a ReLU lets through."""
    own = {"bf16": True, "channels_last": channels_last}
    shared, alone, exact = named(name, **own), named(name, "one-by-one", **own), named(name, "one-by-one")
    model = moved(alone)
    expected = one_by_one(exact, model)
    rounding = float((one_by_one(alone, model) - expected).norm())
    off = float((shared.shared_updates(model, WHO, KEYS) - expected).norm())
    assert 0.5 * rounding < off < 1.5 * rounding < 0.6 * float(expected.norm())


@pytest.mark.parametrize("more", [{}, {"bf16": True, "channels_last": True}], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_traced_it_is_the_same_at_other_numbers(name: str, more: dict[str, bool]) -> None:
    built = named(name, **more)
    assert built._shared is not None
    over, model = built._shared.over, moved(built)
    graph = traced(lambda *given: over(*given), built.initial(), *built._data.draw([0] * 3, [0] * 3))
    inputs, targets = built._data.draw(WHO[:3], KEYS[:3])
    with torch.no_grad():
        assert torch.equal(graph(model, inputs, targets), over(model, inputs, targets))


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 5),
    batch=st.integers(2, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    size=st.integers(1, 3),
    bias=st.booleans(),
)
def test_any_convolution(clients: int, batch: int, stride: int, padding: int, size: int, bias: bool) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 3, size, stride, padding, bias=bias)
    model = nn.Sequential(convolution, nn.Tanh(), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    shared, alone = (task(model, (2, 5, 6), compute, batch=batch) for compute in ("shared", "one-by-one"))
    start = moved(alone)
    expected = one_by_one(alone, start)[:clients]
    assert_close(shared.shared_updates(start, WHO[:clients], KEYS[:clients]), expected)


def test_the_models_own_weights_are_back_in_place() -> None:
    built = named("twice")
    before = dict(built._net.module.named_parameters())
    built.shared_updates(moved(built), WHO, KEYS)
    assert all(own is before[name] for name, own in built._net.module.named_parameters())
    assert built.evaluate(built.initial()).metrics == named("twice").evaluate(built.initial()).metrics


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_client_with_broken_numbers_spoils_nobody_elses(wrong: float) -> None:
    built = named("resnet18-carried")
    assert built._shared is not None
    inputs, targets = built._data.draw(WHO, KEYS)
    expected = built._shared.over(moved(built), inputs, targets)
    inputs[3] = wrong
    found = built._shared.over(moved(built), inputs, targets)
    assert bool(found[3].isnan().any())
    assert torch.equal(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 4)
        self.untrained = nn.BatchNorm1d(5, affine=False, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())


class UsesAWeightOtherwise(Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((x @ self.first.weight).tanh())


class LooksAtAWeight(Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.first.weight.sum()


class MixesSamples(Wrong):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


class NormalisesWithoutWeights(Wrong):
    """By statistics of the batch that no weight stands beside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.untrained(self.first(x)))


class HidesAWeight(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [self.first.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.linear(x, self.hidden[0]).tanh())


class QuietlyWrong(Wrong):
    """The same mistakes where their gradients are far smaller than others."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.02 * self.wrong(x)


class SamplesSecond(Wrong):
    """As recurrent networks have it: another dimension first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.stack((x, 2 * x))).sum(0)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (UsesAWeightOtherwise(), "unsupported operand"),
        (LooksAtAWeight(), "no attribute 'sum'"),
        (MixesSamples(), "differ by"),
        (NormalisesWithoutWeights(), "differ by"),
        (HidesAWeight(), "differ by"),
        (SamplesSecond(), "differ by"),
        (QuietlyWrong(NormalisesWithoutWeights()), "differ by"),
        (QuietlyWrong(HidesAWeight()), "differ by"),
        (nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 4, 1), nn.Flatten()), "used by conv1d"),
        (nn.Sequential(nn.Unflatten(1, (5, 1, 1)), nn.Conv2d(5, 10, 1, groups=5), nn.Flatten()), "in groups"),
    ],
    ids=[
        "matmul",
        "sum",
        "mixing",
        "bare-norm",
        "hidden",
        "second",
        "quiet-norm",
        "quietly-hidden",
        "conv1d",
        "groups",
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(model: nn.Module, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"does not work here .*{reason}.*; allowed: auto") as refused:
        task(model, (5,))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)), {}),
        (nn.Linear(5, 4), {"local": "sgd(lr=0.1, steps=2)"}),
    ],
    ids=["dropout", "local"],
)
def test_tasks_that_are_not_one_gradient_of_a_minibatch_are_refused(model: nn.Module, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="the task does not fit; allowed: one gradient per visit"):
        task(model, (5,), **more)


def test_it_is_not_offered_unless_asked_for() -> None:
    """On a CPU it gains nothing."""
    assert (named("mlp").shared_limit, named("mlp", "auto").shared_limit) == (20, 0)
