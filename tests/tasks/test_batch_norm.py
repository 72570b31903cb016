"""BatchNorm whose running statistics travel with the parameters, held to the one that torch has."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from acefl import simulate
from acefl.core.stop import Stop
from acefl.rules import ACE, ASGD
from acefl.tasks import TorchTask, carried_statistics
from acefl.tasks.batch_norm import CarriedBatchNorm

FEATURES, CLASSES, LR = 5, 3, 0.1


def plain() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6, momentum=LR), nn.ReLU(), nn.Linear(6, CLASSES))


def images() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, FEATURES)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6, momentum=LR),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * FEATURES, CLASSES),
    )


def data(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return 2.0 + 3.0 * torch.randn(samples, FEATURES, generator=draw), torch.randint(
        CLASSES, (samples,), generator=draw
    )


@pytest.mark.parametrize("make", [plain, images])
def test_with_one_client_they_are_what_torch_keeps_with_lr_as_momentum(make: Callable[[], nn.Module]) -> None:
    x, y = data(12)
    task = TorchTask(carried_statistics(make()), nn.CrossEntropyLoss(), [(x, y)], batch=12)
    model = task.initial()
    theirs = make().train()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=LR)
    for key in range(7):
        inputs, targets = task._data.draw([0], [key])
        assert isinstance(inputs, torch.Tensor)
        model = model - LR * task.updates(model.unsqueeze(0), [0], [key])[0]
        loss = nn.CrossEntropyLoss()(theirs(inputs[0]), targets[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    new_x, new_y = data(30, seed=1)
    theirs.eval()
    torch.testing.assert_close(task.module(model)(new_x), theirs(new_x), rtol=1e-4, atol=1e-5)
    judged = TorchTask(carried_statistics(make()), nn.CrossEntropyLoss(), [(x, y)], test=(new_x, new_y), batch=12)
    expected = float(nn.CrossEntropyLoss()(theirs(new_x), new_y).detach())
    assert judged.evaluate(model).metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_ace_keeps_the_mean_over_clients_of_what_they_see() -> None:
    """Whole-batch clients at a model that lr leaves almost alone: statistics converge to the mean of theirs."""
    own = [data(8, seed) for seed in (1, 2, 3)]
    own[2] = (own[2][0] + 40.0, own[2][1])  # one client is far away
    norm = nn.Sequential(nn.BatchNorm1d(FEATURES, affine=False), nn.Linear(FEATURES, CLASSES))
    with torch.no_grad():
        norm[1].weight.zero_()
    task = TorchTask(carried_statistics(norm), nn.CrossEntropyLoss(), own, batch=400, compute="one-by-one")
    run = simulate(task, ACE(), lr=0.2, stop=Stop(arrivals=120), seed=0)
    means = torch.stack([x.mean(0) for x, _ in own]).mean(0)
    layer = task.module(run.model)[0]
    assert isinstance(layer, CarriedBatchNorm)
    torch.testing.assert_close(layer.carried_mean.detach(), means, rtol=0.05, atol=0.5)


def test_what_a_pretrained_model_knows_is_kept() -> None:
    trained = images().train()
    for seed in range(5):
        trained(data(20, seed)[0])
    x, _ = data(9, seed=8)
    expected = copy.deepcopy(trained).eval()(x)
    torch.testing.assert_close(carried_statistics(trained).eval()(x), expected)


def test_a_model_that_is_a_batch_norm_itself_is_replaced() -> None:
    assert isinstance(carried_statistics(nn.BatchNorm1d(4)), CarriedBatchNorm)


def test_a_run_with_them_repeats_bit_for_bit() -> None:
    def run() -> torch.Tensor:
        task = TorchTask(carried_statistics(images()), nn.CrossEntropyLoss(), [data(9, k) for k in range(4)], batch=5)
        return simulate(task, ASGD(), lr=0.05, stop=Stop(arrivals=30), seed=1).model

    assert torch.equal(run(), run())


def test_what_is_frozen_stays_frozen() -> None:
    model = nn.Sequential(*plain(), nn.BatchNorm1d(CLASSES), nn.Linear(CLASSES, CLASSES))
    for part in model[:4]:
        part.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    backbone = model[1]
    carried = carried_statistics(model)
    assert carried[1] is backbone
    trained = [name for name, own in carried.named_parameters() if own.requires_grad]
    assert trained == ["4.weight", "4.carried_mean", "4.carried_var", "5.weight", "5.bias"]
    assert len(TorchTask(carried, nn.CrossEntropyLoss(), [data(20)]).initial()) == 3 * CLASSES + CLASSES**2 + CLASSES
