"""A user's own module as a task: flat vectors, batched gradients and evaluations against plain torch loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from acefl import tasks
from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput
from acefl.tasks import LocalSteps, TorchTask, batch_statistics, carried_statistics

CLASSES, FEATURES, SIZES = 3, 12, (9, 4, 17)


class TwoInputs(nn.Module):
    """Takes its inputs by name, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.head = nn.Linear(5 + FEATURES, CLASSES)

    def forward(self, *, tokens: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat((self.words(tokens).mean(1), features), 1))


class WithIdlePart(nn.Module):
    """Has a frozen layer, a tied layer, and one that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, FEATURES)
        self.frozen.requires_grad_(False)
        self.square = nn.Linear(FEATURES, FEATURES, bias=False)
        self.same = nn.Linear(FEATURES, FEATURES, bias=False)
        self.same.weight = self.square.weight
        self.idle = nn.Linear(2, 2)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.same(torch.tanh(self.square(self.frozen(x)))))


class FunctionalDropout(nn.Module):
    """Random without any dropout layer to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(x, 0.5, self.training))


def softmax() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def normalised() -> nn.Module:
    return batch_statistics(nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)))


def carried() -> nn.Module:
    return carried_statistics(
        nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    )


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def inputs_of(module: nn.Module, count: int, draw: torch.Generator) -> Any:
    features = torch.randn(count, FEATURES, generator=draw)
    if isinstance(module, TwoInputs):
        return {"tokens": torch.randint(7, (count, 4), generator=draw), "features": features}
    return features


def classification(make: Callable[[], nn.Module], *, compute: str = "one-by-one", **settings: Any) -> TorchTask:
    torch.manual_seed(0)
    module, draw = make(), torch.Generator().manual_seed(1)
    data = [
        (inputs_of(module, count, draw), torch.randint(CLASSES, (count,), generator=draw)) for count in (*SIZES, 11)
    ]
    return TorchTask(module, nn.CrossEntropyLoss(), data[:-1], test=data[-1], batch=6, compute=compute, **settings)


def some_models(task: TorchTask, count: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(2)
    return task.initial() + 0.3 * torch.randn(count, len(task.initial()), generator=draw)


def some_keys(count: int) -> list[int]:
    return [keyed.key(5, k) for k in range(count)]


EVERY_MODEL = [softmax, mlp, cnn, normalised, carried, TwoInputs, WithIdlePart]


@pytest.mark.parametrize("make", EVERY_MODEL)
def test_together_is_one_by_one(make: Callable[[], nn.Module]) -> None:
    together, one_by_one = (classification(make, compute=compute) for compute in ("together", "one-by-one"))
    for count in (1, 5):
        models, clients = some_models(together, count), [k % 3 for k in range(count)]
        torch.testing.assert_close(
            together.updates(models, clients, some_keys(count)),
            one_by_one.updates(models, clients, some_keys(count)),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("make", EVERY_MODEL)
def test_an_update_is_the_gradient_that_plain_torch_computes(make: Callable[[], nn.Module]) -> None:
    task = classification(make)
    torch.manual_seed(0)
    module = make()
    inputs, targets = task._data.draw([2], some_keys(1))
    if isinstance(inputs, dict):
        output = module(**{name: values[0] for name, values in inputs.items()})
    else:
        output = module(inputs[0])  # type: ignore[index]
    F.cross_entropy(output, targets[0]).backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    update = task.updates(task.initial().unsqueeze(0), [2], some_keys(1))[0]
    torch.testing.assert_close(update, flat, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", EVERY_MODEL)
def test_the_flat_vector_is_the_trained_parameters_in_order(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    flat = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
    task = classification(make)
    assert torch.equal(task.initial(), flat)
    changed = task.initial() + 1.0
    task.evaluate(changed)
    views = torch.cat([view.flatten() for view in task._net.views(changed)])
    assert torch.equal(views, changed)
    loaded = torch.cat([p.detach().flatten() for p in task._net.module.parameters() if p.requires_grad])
    assert torch.equal(loaded, changed)


def test_auto_computes_small_models_together_and_what_cannot_be_batched_one_by_one() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) if float(x.sum()) > 0 else self.head(-x)

    assert classification(mlp, compute="auto").compute.name == "together"
    assert classification(Branching, compute="auto").compute.name == "one-by-one"
    with pytest.raises(InvalidInput, match="compute is 'together', which does not work here .*; allowed: auto"):
        classification(Branching, compute="together")


def test_the_users_module_is_left_alone_and_may_serve_two_tasks() -> None:
    module = mlp()
    before = [p.detach().clone() for p in module.parameters()]
    pairs = [(torch.randn(5, FEATURES), torch.randint(CLASSES, (5,))) for _ in range(2)]
    first, second = (
        TorchTask(module, nn.CrossEntropyLoss(), pairs, compute="one-by-one", local=local)
        for local in (None, LocalSteps(1, functools.partial(torch.optim.SGD, lr=0.1)))
    )
    models = some_models(first, 2)
    alone = first.updates(models, [0, 1], [1, 2])
    second.updates(models + 1.0, [0, 1], [1, 2])
    second.evaluate(models[0])
    assert torch.equal(first.updates(models, [0, 1], [1, 2]), alone)
    assert all(torch.equal(old, now) for old, now in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_one_local_step_of_rate_one_is_the_gradient(ridge: float) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=1.0)
    local, plain = classification(mlp, local=LocalSteps(1, sgd), ridge=ridge), classification(mlp, ridge=ridge)
    models = some_models(plain, 3)
    torch.testing.assert_close(
        local.updates(models, [0, 1, 2], some_keys(3)),
        plain.updates(models, [0, 1, 2], some_keys(3)),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        functools.partial(torch.optim.AdamW, lr=0.05),
    ],
)
def test_local_steps_are_a_plain_torch_loop(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    task = classification(mlp, local=LocalSteps(5, optimizer), ridge=0.2)
    start = some_models(task, 1)
    inputs, targets = task._data.draw([1], some_keys(1), steps=5)
    module = mlp()
    nn.utils.vector_to_parameters(start[0].clone(), module.parameters())
    trainer = optimizer(module.parameters())
    for x, y in zip(inputs[0].split(6), targets[0].split(6), strict=True):  # type: ignore[index]
        trainer.zero_grad()
        flat = torch.cat([p.flatten() for p in module.parameters()])
        (F.cross_entropy(module(x), y) + 0.5 * 0.2 * flat @ flat).backward()
        trainer.step()
    end = nn.utils.parameters_to_vector(module.parameters()).detach()
    for _ in range(2):  # the second time shows that no momentum is carried over
        torch.testing.assert_close(task.updates(start, [1], some_keys(1))[0], start[0] - end, rtol=1e-4, atol=1e-6)


def test_local_steps_see_different_samples_at_each_step() -> None:
    task = classification(softmax, local=LocalSteps(3, functools.partial(torch.optim.SGD, lr=0.1)))
    inputs, _ = task._data.draw([2], [1], steps=3)
    first, second, third = inputs[0].split(6)  # type: ignore[index]
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("local", [None, LocalSteps(2, functools.partial(torch.optim.SGD, lr=0.1))])
@pytest.mark.parametrize("make", [dropout, FunctionalDropout])
def test_random_models_follow_the_key_alone(make: Callable[[], nn.Module], local: LocalSteps | None) -> None:
    task = classification(make, local=local)
    models = some_models(task, 1).expand(3, -1)
    before = torch.get_rng_state()
    updates = task.updates(models, [0, 0, 0], [11, 12, 11])
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # what others draw changes nothing
    assert torch.equal(task.updates(models[:1], [0], [11])[0], updates[0])
    assert torch.equal(updates[0], updates[2])
    assert not torch.equal(updates[0], updates[1])


def test_dropout_drops_in_training_and_not_in_evaluation() -> None:
    """With one sample and one batch of copies of it, only dropout can make two keys' gradients differ."""
    torch.manual_seed(0)
    task = TorchTask(dropout(), nn.CrossEntropyLoss(), [(torch.ones(1, FEATURES), torch.zeros(1).long())], batch=2)
    one, other = task.updates(task.initial().expand(2, -1), [0, 0], [1, 2])
    assert not torch.equal(one, other)
    losses = {task.evaluate(task.initial()).metrics["loss"] for _ in range(3)}
    assert len(losses) == 1


@pytest.mark.parametrize("make", [dropout, FunctionalDropout])
def test_random_models_cannot_be_computed_together(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InvalidInput, match="compute='together' allows neither local steps nor .*dropout"):
        classification(make, compute="together")


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(FEATURES), nn.InstanceNorm1d(FEATURES, track_running_stats=True)])
def test_running_statistics_are_refused_with_the_ways_out(layer: nn.Module) -> None:
    def make() -> nn.Module:
        return nn.Sequential(layer, nn.Linear(FEATURES, CLASSES))

    with pytest.raises(InvalidInput, match=r"layer '?0.* running statistics.*GroupNorm.*batch_statistics\(model\)"):
        classification(make)


def test_batch_statistics_normalise_by_the_batch_in_training_and_evaluation() -> None:
    module = batch_statistics(nn.Sequential(nn.BatchNorm1d(FEATURES, affine=False)))
    x = 3.0 + 2.0 * torch.randn(64, FEATURES)
    expected = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    for mode in (module.train(), module.eval()):
        torch.testing.assert_close(mode(x), expected, rtol=1e-4, atol=1e-5)
    assert not list(module.buffers())


def test_tensor_pairs_arrays_and_datasets_give_the_same_task() -> None:
    torch.manual_seed(0)
    module = mlp()
    pairs = [(torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))) for n in SIZES]

    class Listed(Dataset[tuple[torch.Tensor, int]]):
        def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
            self.rows = list(zip(x, y.tolist(), strict=True))

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return self.rows[row]

    given = [
        pairs,
        [(x.numpy(), y.numpy()) for x, y in pairs],
        [TensorDataset(x, y) for x, y in pairs],
        [Listed(x, y) for x, y in pairs],
    ]
    built = [
        TorchTask(module, nn.CrossEntropyLoss(), clients, test=clients[0], compute="one-by-one") for clients in given
    ]  # type: ignore[arg-type]
    models = some_models(built[0], 3)
    for task in built:
        assert task.samples == list(SIZES)
        assert torch.equal(task.updates(models, [0, 1, 2], [1, 2, 3]), built[0].updates(models, [0, 1, 2], [1, 2, 3]))
        assert task.evaluate(models[0]).metrics == built[0].evaluate(models[0]).metrics


def test_a_data_set_of_named_inputs_is_accepted() -> None:
    rows = [({"tokens": torch.tensor([1, 2]), "features": torch.ones(FEATURES)}, 1)] * 3
    task = TorchTask(TwoInputs(), nn.CrossEntropyLoss(), [rows, rows])  # type: ignore[list-item]
    assert task.updates(task.initial().unsqueeze(0), [1], [0]).shape == (1, len(task.initial()))


@pytest.mark.parametrize("make", EVERY_MODEL)
def test_evaluation_is_a_plain_loop_over_clients(make: Callable[[], nn.Module]) -> None:
    task = classification(make, ridge=0.1)
    model = some_models(task, 1)[0]
    result = task.evaluate(model)
    module = task._net.module.eval()
    losses, accuracies = [], []
    if make is normalised:  # the batch that normalises is the whole data, so clients cannot be taken one by one
        with torch.no_grad():
            outputs = module(task._data.inputs).split(SIZES)
    else:
        outputs = []
        for client in range(3):
            rows = slice(sum(SIZES[:client]), sum(SIZES[: client + 1]))
            with torch.no_grad():
                if isinstance(task._data.inputs, dict):
                    outputs.append(module(**{name: values[rows] for name, values in task._data.inputs.items()}))
                else:
                    outputs.append(module(task._data.inputs[rows]))
    for output, targets in zip(outputs, task._data.targets.split(SIZES), strict=True):
        losses.append(float(F.cross_entropy(output, targets)) + 0.05 * float(model @ model))
        accuracies.append(float((output.argmax(1) == targets).float().mean()))
    np.testing.assert_allclose(result.client_loss, losses, rtol=1e-5)
    assert result.client_accuracy is not None
    np.testing.assert_allclose(result.client_accuracy, accuracies, rtol=1e-6)
    assert result.metrics["client_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_loss_and_accuracy_are_those_of_the_test_data() -> None:
    task = classification(mlp)
    assert task._test is not None
    inputs, targets = task._test.inputs, task._test.targets
    metrics = task.evaluate(task.initial()).metrics
    with torch.no_grad():
        output = task._net.module(inputs)
    assert metrics["loss"] == pytest.approx(float(F.cross_entropy(output, targets)), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((output.argmax(1) == targets).float().mean()))


def test_ridge_adds_its_gradient_and_its_loss() -> None:
    plain, with_ridge = classification(mlp), classification(mlp, ridge=0.5)
    models = some_models(plain, 2)
    difference = with_ridge.updates(models, [0, 1], [1, 2]) - plain.updates(models, [0, 1], [1, 2])
    torch.testing.assert_close(difference, 0.5 * models, rtol=1e-4, atol=1e-5)
    added = with_ridge.evaluate(models[0]).client_loss - plain.evaluate(models[0]).client_loss
    np.testing.assert_allclose(added, [0.25 * float(models[0] @ models[0])] * 3, rtol=1e-5)


def test_regression_has_a_loss_and_no_accuracy() -> None:
    clients = [(torch.randn(n, FEATURES), torch.randn(n, 1)) for n in SIZES]
    result = TorchTask(nn.Linear(FEATURES, 1), nn.MSELoss(), clients).evaluate(torch.zeros(FEATURES + 1))
    assert result.client_accuracy is None
    assert "accuracy" not in result.metrics
    np.testing.assert_allclose(result.client_loss, [float(y.square().mean()) for _, y in clients], rtol=1e-5)


def test_a_loss_that_looks_at_values_can_be_evaluated_too() -> None:
    def hinge(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(output, targets)
        return loss if float(loss.detach()) < 1.0 else 2.0 * loss - 1.0

    clients = [(torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))) for n in SIZES]
    result = TorchTask(softmax(), hinge, clients).evaluate(torch.zeros((FEATURES + 1) * CLASSES))
    np.testing.assert_allclose(result.client_loss, [2.0 * np.log(CLASSES) - 1.0] * 3, rtol=1e-5)


def test_evaluation_in_parts_is_evaluation_at_once() -> None:
    task = classification(mlp)
    whole = task.evaluate(task.initial())
    cut = classification(mlp, evaluation_batch=29)  # of 30 rows: one would be left over
    parts = cut.evaluate(cut.initial())
    torch.testing.assert_close(parts.client_loss, whole.client_loss, rtol=1e-6, atol=1e-6)
    normal = classification(normalised, evaluation_batch=29)
    normal.evaluate(normal.initial())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": []}, "clients is empty; allowed: at least one client's data"),
        ({"batch": 0}, "batch is 0; allowed: at least 1"),
        ({"compute": "fast"}, "compute is 'fast'; allowed: auto, one-by-one, together"),
        ({"model": nn.ReLU()}, "no trainable parameters"),
        ({"model": softmax().double()}, "parameter weight is torch.float64; allowed: torch.float32"),
        ({"clients": [(torch.ones(2, FEATURES), torch.zeros(3).long())]}, r"differ in length: \[2, 3\]"),
        ({"clients": [(torch.ones(0, FEATURES), torch.zeros(0).long())]}, "client 0 has no data"),
        ({"clients": [(torch.ones(2, FEATURES),)]}, r"a tuple of 1; allowed: \(inputs, targets\)"),
        ({"clients": [[]]}, "a client has no data"),
        ({"clients": [[{"x": 1.0, "y": 2}]]}, r"gives dict; allowed: \(input, target\) pairs"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    working = {
        "compute": "one-by-one",
        "model": softmax(),
        "loss": nn.CrossEntropyLoss(),
        "clients": [(torch.ones(2, FEATURES), torch.ones(2).long())],
    }
    TorchTask(**working)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=message):
        TorchTask(**{**working, **settings})


def test_local_work_needs_a_step() -> None:
    with pytest.raises(InvalidInput, match="steps is 0; allowed: at least 1"):
        tasks.LocalSteps(0, torch.optim.SGD)


def test_a_task_describes_itself() -> None:
    named = {"name": "torch", "model": "Sequential", "clients": 3}
    assert named.items() <= classification(mlp).describe().items()
    work = "A client sends the gradient of one minibatch of 6 of its samples."
    assert classification(mlp, description={"name": "mine"}).describe() == {"name": "mine", "client_work": work}


def test_a_model_vector_goes_back_into_a_module() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    layers[0].bias.requires_grad_(False)
    inputs, targets = torch.randn(6, 3), torch.randint(2, (6,))
    task = TorchTask(layers, nn.CrossEntropyLoss(), [(inputs, targets)], test=(inputs, targets))
    model = torch.randn_like(task.initial())
    module = task.module(model)
    task.evaluate(task.initial())  # the task's own module moves on, the copy does not
    own = nn.CrossEntropyLoss()(module(inputs), targets).item()
    assert own == pytest.approx(task.evaluate(model).metrics["loss"], rel=1e-5)


# What a record says of a task


def described_task(loss: Any, **settings: Any) -> dict[str, Any]:
    clients = [(torch.randn(n, FEATURES), torch.randint(CLASSES, (n,))) for n in SIZES]
    return TorchTask(softmax(), loss, clients, **settings).describe()


def test_a_record_says_what_made_a_task_of_ones_own() -> None:
    weights = torch.tensor([1.0, 2.0, 4.0])
    local = LocalSteps(5, functools.partial(torch.optim.SGD, lr=0.05))
    test = torch.randn(7, FEATURES), torch.randint(CLASSES, (7,))
    loss = nn.CrossEntropyLoss(weight=weights, label_smoothing=0.1)
    found = described_task(loss, batch=6, local=local, test=test, evaluate_on=3)
    assert found == {
        "name": "torch",
        "model": "Linear",
        "loss": {
            "name": "CrossEntropyLoss",
            "reduction": "mean",
            "ignore_index": -100,
            "label_smoothing": pytest.approx(0.1),
            "weight": [1.0, 2.0, 4.0],
        },
        "clients": 3,
        "samples": sum(SIZES),
        "batch": 6,
        "local": {"name": "LocalSteps", "steps": 5, "optimizer": {"name": "SGD", "lr": 0.05}},
        "ridge": 0.0,
        "bf16": False,
        "test": 7,
        "evaluate_on": 3,
        "evaluation_batch": 4096,
        "client_work": "A client takes 5 steps of SGD (lr 0.05) on minibatches of 6 of its samples and sends the model "
        "it started from minus the one it ended with.",
    }


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (F.cross_entropy, "cross_entropy"),
        (functools.partial(F.cross_entropy, label_smoothing=0.5), {"name": "cross_entropy", "label_smoothing": 0.5}),
        (lambda output, targets: F.cross_entropy(output, targets), f"{__name__}.<lambda>"),
    ],
)
def test_a_loss_is_recorded_by_its_name_and_settings(loss: Any, said: Any) -> None:
    assert described_task(loss)["loss"] == said


def test_a_large_weight_is_recorded_by_its_content() -> None:
    class Pinned(nn.Module):
        def __init__(self, fill: float) -> None:
            super().__init__()
            self.register_buffer("table", torch.full((2000,), fill))

        def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(output, targets) * self.get_buffer("table").mean()

    one, same, other = (described_task(Pinned(fill))["loss"] for fill in (1.0, 1.0, 2.0))
    assert one == same != other
    assert one["table"]["shape"] == [2000]
