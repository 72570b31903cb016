"""Local work against torch's own optimizers, and the laws of its keys."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput
from acefl.tasks import LocalSteps, LocalWork, TorchTask, build, digits

FEATURES, CLASSES = 6, 3


def task(local: LocalWork | LocalSteps | None, compute: str = "auto", sizes: tuple[int, ...] = (9, 4, 14)) -> TorchTask:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    clients = [(torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))) for n in sizes]
    return TorchTask(model, nn.CrossEntropyLoss(), clients, batch=4, local=local, compute=compute)


def one(task: TorchTask, client: int = 0, key: int = 7) -> torch.Tensor:
    return task.updates(task.initial().unsqueeze(0), [client], [key])[0]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LocalWork("sgd", lr=0.1, momentum=0.9), partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
        (LocalWork("sgd", lr=0.1, weight_decay=0.2), partial(torch.optim.SGD, lr=0.1, weight_decay=0.2)),
        (LocalWork("adamw", lr=0.01, weight_decay=0.3), partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3)),
    ],
)
def test_one_step_is_that_of_torchs_optimizer(ours: LocalWork, theirs: partial[torch.optim.Optimizer]) -> None:
    expected = one(task(LocalSteps(1, theirs)))
    torch.testing.assert_close(one(task(ours)), expected, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_several_steps_are_those_of_torchs_optimizer(optimizer: str) -> None:
    """The oracle: torch's optimizer on the very minibatches of the keys, one after another."""
    work = LocalWork(optimizer, lr=0.05, steps=4, weight_decay=0.01, momentum=0.9 if optimizer == "sgd" else 0.0)
    plain = task(None)
    weights = nn.Parameter(plain.initial())
    kinds = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adamw": torch.optim.AdamW}
    steps = kinds[optimizer]([weights], lr=0.05, weight_decay=0.01)
    for step in range(4):
        key = 7 if step == 0 else keyed.key(7, 31, step)
        weights.grad = plain.updates(weights.detach().unsqueeze(0), [1], [key])[0]
        steps.step()
    torch.testing.assert_close(one(task(work), client=1), plain.initial() - weights.detach(), rtol=2e-5, atol=2e-7)


def test_a_single_step_sends_lr_times_the_gradient() -> None:
    gradient = one(task(None))
    torch.testing.assert_close(
        one(task(LocalWork("sgd", lr=0.05, momentum=0.9))), 0.05 * gradient, rtol=1e-4, atol=1e-7
    )
    torch.testing.assert_close(one(task(LocalWork("sgd", lr=0.05, send="mean"))), gradient)


def test_the_mean_is_of_the_gradients_along_the_way() -> None:
    """With plain SGD of rate r, w_start - w_end is r times the sum of the gradients along the way."""
    difference = one(task(LocalWork("sgd", lr=0.05, steps=3)))
    mean = one(task(LocalWork("sgd", lr=0.05, steps=3, send="mean")))
    torch.testing.assert_close(difference, 3 * 0.05 * mean, rtol=1e-4, atol=1e-6)


def test_clients_with_more_data_take_more_steps_in_an_epoch() -> None:
    work = LocalWork("sgd", epochs=2)
    assert [work.count(samples, 4) for samples in (9, 4, 14)] == [6, 2, 8]


@pytest.mark.parametrize("send", ["difference", "mean"])
def test_together_is_one_by_one(send: str) -> None:
    work = LocalWork("sgd", epochs=1, lr=0.1, momentum=0.9, send=send)
    apart, together = task(work, "one-by-one"), task(work, "together")
    models = torch.stack([apart.initial() + 0.01 * k for k in range(3)])
    clients, keys = [2, 0, 1], [5, 6, 7]
    expected = torch.stack([apart.updates(models[k : k + 1], clients[k : k + 1], keys[k : k + 1])[0] for k in range(3)])
    torch.testing.assert_close(together.updates(models, clients, keys), expected, rtol=1e-4, atol=1e-6)


def test_what_a_person_writes() -> None:
    assert LocalWork.parse("adamw(lr=5e-4, weight_decay=0.01)") == LocalWork("adamw", lr=5e-4, weight_decay=0.01)
    assert LocalWork.parse("sgd(epochs=2, lr=0.01, momentum=0.9, send='mean')").epochs == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adam(lr=1)", "local is 'adam"),
        ("sgd(rate=1)", "local sgd has no setting 'rate'; allowed: lr, steps"),
        ("sgd(lr=0)", "lr is 0; allowed: a finite number above 0"),
        ("sgd(steps=0)", "steps is 0; allowed: at least 1"),
        ("adamw(momentum=0.9)", "momentum is 0.9; allowed with adamw: 0"),
        ("sgd(send='all')", "send is 'all'; allowed: difference, mean"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        LocalWork.parse(text)


@pytest.mark.parametrize(
    "text", ["sgd(lr=0.1, epochs=2)", "sgd(epochs=1, momentum=0.9, send='mean')", "adamw(lr=5e-4)"]
)
def test_what_is_written_is_what_is_done(text: str) -> None:
    """As words, as settings and from a record it is the same work."""
    work = LocalWork.parse(text)
    assert LocalWork.parse(work.text()) == work
    expected = one(task(work))
    assert torch.equal(one(task(text)), expected)  # type: ignore[arg-type]
    small = {"clients": 3, "alpha": 1.0, "batch": 100}
    written, given, plain = digits(**small, local=text), digits(**small, local=work), digits(**small)
    again = build(given.describe())
    assert torch.equal(one(written), one(given))  # type: ignore[arg-type]
    assert torch.equal(one(again), one(given))  # type: ignore[arg-type]
    assert not torch.equal(one(plain), one(given))
    assert written.describe()["local"] == text


@pytest.mark.parametrize(
    ("local", "said"),
    [
        (None, "A client sends the gradient of one minibatch of 4 of its samples."),
        (
            LocalWork("sgd", lr=0.1, epochs=2, momentum=0.9),
            "A client takes 2 epochs of SGD (lr 0.1, momentum 0.9) on minibatches of 4 of its samples and sends the "
            "model it started from minus the one it ended with.",
        ),
        (
            LocalWork("adamw", lr=5e-4, send="mean"),
            "A client takes 1 step of AdamW (lr 0.0005) on minibatches of 4 of its samples and sends the mean of the "
            "gradients along the way.",
        ),
    ],
)
def test_a_record_says_what_a_client_does(local: LocalWork | None, said: str) -> None:
    assert task(local).describe()["client_work"] == said


def test_local_work_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"local is 3; allowed: None, LocalWork, LocalSteps or text such as"):
        task(3)  # type: ignore[arg-type]
