"""The digits task: real data, split as the design says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from acefl import tasks
from acefl.core.errors import InvalidInput
from acefl.tasks.torch_task import TorchTask


@pytest.fixture(scope="module")
def softmax() -> TorchTask:
    return tasks.digits(clients=100, alpha=0.1, model="softmax", seed=0)


@pytest.fixture(scope="module")
def mlp() -> TorchTask:
    return tasks.digits(clients=10, alpha=0.5, model="mlp", seed=1)


def own_labels(task: TorchTask) -> list[np.ndarray]:
    return [labels.numpy() for labels in task._data.targets.split(task.samples)]


def test_seventy_thirty(softmax: TorchTask) -> None:
    assert sum(softmax.samples) == 1257
    assert softmax._test is not None
    assert len(softmax._test.targets) == 540
    assert len(softmax.samples) == softmax.clients == 100
    assert min(softmax.samples) >= 1


def test_the_split_is_stratified_and_loses_no_image(softmax: TorchTask) -> None:
    data = load_digits()
    assert softmax._test is not None
    for label in range(10):
        share = float((softmax._test.targets == label).sum()) / float((data.target == label).sum())
        assert share == pytest.approx(0.3, abs=0.005)
    both = torch.cat((softmax._data.inputs, softmax._test.inputs)) * 16
    everything = sorted(map(tuple, data.data.astype(int).tolist()))
    assert sorted(map(tuple, both.round().int().tolist())) == everything


def test_clients_are_ordered_by_their_most_common_label(softmax: TorchTask) -> None:
    order = [int(np.bincount(labels, minlength=10).argmax()) for labels in own_labels(softmax)]
    assert order == sorted(order)
    assert set(order) == set(range(10))


def test_the_models_are_those_of_the_design(softmax: TorchTask, mlp: TorchTask) -> None:
    assert softmax.initial().shape == (64 * 10 + 10,)
    assert float(softmax.initial().abs().max()) == 0.0
    assert mlp.initial().shape == (64 * 64 + 64 + 64 * 10 + 10,)
    assert float(mlp.initial().std()) > 0.0


def test_the_softmax_carries_its_ridge_and_the_mlp_none(softmax: TorchTask, mlp: TorchTask) -> None:
    """At w the gradient of (1e-3 / 2) |w|^2 is 1e-3 w: seen where the data's gradient is the same."""
    for task, ridge in ((softmax, 1e-3), (mlp, 0.0)):
        model = torch.randn(task.initial().shape, generator=torch.Generator().manual_seed(0))
        data_only = task.compute(model.unsqueeze(0), [3], [77])
        torch.testing.assert_close(task.updates(model.unsqueeze(0), [3], [77]), data_only + ridge * model)


def test_minibatches_are_twenty_draws_with_replacement_from_the_clients_own_rows(softmax: TorchTask) -> None:
    client = min(range(100), key=softmax.samples.__getitem__)  # fewer rows than a batch, so some come twice
    inputs, targets = softmax._data.draw([client], [5])
    assert inputs.shape == (1, 20, 64)  # type: ignore[attr-defined]
    start = sum(softmax.samples[:client])
    own = softmax._data.inputs[start : start + softmax.samples[client]]
    assert all(bool((own == image).all(1).any()) for image in inputs[0])  # type: ignore[index]
    assert set(targets[0].tolist()) <= set(own_labels(softmax)[client].tolist())


def test_a_described_task_is_built_again_the_same(mlp: TorchTask) -> None:
    again = tasks.build(mlp.describe())
    assert isinstance(again, TorchTask)
    assert again.describe() == mlp.describe()
    assert torch.equal(again.initial(), mlp.initial())
    assert torch.equal(again._data.targets, mlp._data.targets)
    assert torch.equal(again._data.inputs, mlp._data.inputs)


def test_gradient_descent_learns_to_read(softmax: TorchTask) -> None:
    """A linear model reads about 96 % of these digits: labels and images belong together."""
    model = softmax.initial()
    for step in range(200):
        keys = [1_000 * step + client for client in range(100)]
        model -= 1.0 * softmax.updates(model.expand(100, -1), list(range(100)), keys).mean(0)
    assert softmax.evaluate(model).metrics["accuracy"] > 0.9


def test_building_a_task_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    tasks.digits(clients=1, model="mlp")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "resnet"}, "model is 'resnet'; allowed: softmax, mlp"),
        ({"seed": -1}, "seed is -1; allowed"),
        ({"clients": 0}, "clients is 0; allowed"),
        ({"batch": 0}, "batch is 0; allowed"),
        ({"partition": "fair"}, "partition is 'fair'; allowed"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tasks.digits(**{"clients": 1, **settings})  # type: ignore[arg-type]


def test_unknown_tasks_and_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown task 'nobody'; allowed: .*digits"):
        tasks.build({"name": "nobody"})
    with pytest.raises(InvalidInput, match="task digits: .*colour"):
        tasks.build({"name": "digits", "colour": True})
