"""Models and data as people have them: transformers, PEFT, frozen backbones, their data sets; against plain torch."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask

WORDS, LENGTH, CLASSES = 30, 7, 3


def texts(*sizes: int) -> list[dict[str, torch.Tensor]]:
    """As a tokenizer gives them."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for size in sizes:
        ids = torch.randint(1, WORDS, (size, LENGTH), generator=draw)
        mask = (torch.arange(LENGTH) < 3 + torch.arange(size).unsqueeze(1) % 4).long()
        labels = torch.randint(CLASSES, (size,), generator=draw)
        found.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return found


def classifier(**settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            num_labels=CLASSES,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **settings,
        )
    )


def causal() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
    )


def adapter(model: nn.Module, **settings: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **settings))


def gradient_by_hand(task: TorchTask, model: nn.Module, client: int, key: int) -> torch.Tensor:
    """What transformers' own loss gives on the task's minibatch."""
    inputs, targets = task._data.draw([client], [key])
    model.train()
    model.zero_grad()
    model(**{name: values[0] for name, values in inputs.items()}, labels=targets[0]).loss.backward()  # type: ignore[attr-defined]
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])


# Models


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()])
def test_a_transformers_classifier_trains_by_its_own_loss_and_has_accuracy(loss: Any) -> None:
    model = classifier()
    task = TorchTask(model, loss, texts(6, 4), test=texts(5)[0], batch=4)
    update = task.updates(task.initial().unsqueeze(0), [1], [9])[0]
    torch.testing.assert_close(update, gradient_by_hand(task, model, 1, 9), rtol=1e-3, atol=1e-6)
    found = task.evaluate(task.initial())
    given = texts(6, 4)[1]
    model.eval()
    with torch.no_grad():
        expected = model(**given)
    assert found.client_loss is not None
    assert found.client_accuracy is not None
    assert float(found.client_loss[1]) == pytest.approx(float(expected.loss), rel=1e-5)
    right = (expected.logits.argmax(1) == given["labels"]).float().mean()
    assert float(found.client_accuracy[1]) == pytest.approx(float(right))
    assert "heldout_client_accuracy" in found.metrics


def test_a_causal_language_model_predicts_the_next_token() -> None:
    model = causal()
    data = [({"input_ids": own["input_ids"]}, own["input_ids"]) for own in texts(6, 4)]
    task = TorchTask(model, None, data, batch=4)
    update = task.updates(task.initial().unsqueeze(0), [0], [9])[0]
    torch.testing.assert_close(update, gradient_by_hand(task, model, 0, 9), rtol=1e-3, atol=1e-6)
    with torch.no_grad():
        expected = model(**data[1][0], labels=data[1][1]).loss
    losses = task.evaluate(task.initial()).client_loss
    assert losses is not None
    assert float(losses[1]) == pytest.approx(float(expected), rel=1e-5)


class OddLoss(nn.Module):
    """Its loss is none of the usual ones, and knows its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits, labels) + logits.std(0).sum()
        return SimpleNamespace(logits=logits, loss=loss)


def test_a_loss_that_only_the_model_knows_is_asked_of_it() -> None:
    torch.manual_seed(0)
    model, data = OddLoss(), [(torch.randn(n, 4), torch.randint(CLASSES, (n,))) for n in (7, 5)]
    task = TorchTask(model, None, data, test=data[0], batch=4)
    inputs, targets = task._data.draw([1], [9])
    model(inputs[0], labels=targets[0]).loss.backward()  # type: ignore[index]
    assert model.head.weight.grad is not None
    assert model.head.bias.grad is not None
    expected = torch.cat([model.head.weight.grad.flatten(), model.head.bias.grad])
    torch.testing.assert_close(task.updates(task.initial().unsqueeze(0), [1], [9])[0], expected, rtol=1e-4, atol=1e-6)
    found = task.evaluate(task.initial())
    own = [model(x, labels=y).loss.item() for x, y in data]
    np.testing.assert_allclose(found.client_loss, own, rtol=1e-5)  # type: ignore[arg-type]
    assert found.metrics["loss"] == pytest.approx(own[0], rel=1e-5)
    assert found.client_accuracy is None
    with pytest.raises(InvalidInput, match="metrics need outputs, and only the model knows its loss"):
        TorchTask(model, None, data, metrics={"mean": lambda outputs, targets: 0.0})


def test_a_frozen_backbone_stays_and_may_be_of_any_precision() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(4, 8).to(torch.bfloat16).requires_grad_(False)
            self.norm = nn.BatchNorm1d(8).requires_grad_(False)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.backbone(x.bfloat16()).float()))

    torch.manual_seed(0)
    model = Half()
    model.norm.running_mean = torch.randn(8)
    data = [(torch.randn(6, 4), torch.randint(CLASSES, (6,)))]
    task = TorchTask(model, nn.CrossEntropyLoss(), data, batch=4)
    assert len(task.initial()) == 8 * CLASSES + CLASSES
    assert task.describe()["trained"] == len(task.initial())
    inputs, targets = task._data.draw([0], [1])
    expected = torch.autograd.grad(F.cross_entropy(model.eval()(inputs[0]), targets[0]), [*model.head.parameters()])  # type: ignore[index]
    update = task.updates(task.initial().unsqueeze(0), [0], [1])[0]
    torch.testing.assert_close(update, torch.cat([g.flatten() for g in expected]), rtol=1e-2, atol=2e-3)
    assert torch.equal(task.module(update).norm.running_mean, model.norm.running_mean)  # type: ignore[union-attr, arg-type]


def test_a_buffer_that_changes_in_training_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.head = nn.Linear(4, CLASSES)
            self.register_buffer("calls", torch.zeros(1), persistent=kept)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.calls += 1
            return self.head(x)

    data = [(torch.randn(6, 4), torch.randint(CLASSES, (6,)))]
    with pytest.raises(InvalidInput, match="buffer calls changes in training, and updates do not carry buffers"):
        TorchTask(Counting(True), nn.CrossEntropyLoss(), data)
    TorchTask(Counting(False), nn.CrossEntropyLoss(), data)  # a cache


@pytest.mark.parametrize("head", [False, True])
def test_an_adapter_alone_travels_and_comes_back_whole(head: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = adapter(classifier(), target_modules=["query", "value"], task_type="SEQ_CLS" if head else None)
    task = TorchTask(model, None, texts(6, 4), batch=4)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert len(task.initial()) == trained < sum(p.numel() for p in model.parameters()) / 4
    moved = task.initial() + task.updates(task.initial().unsqueeze(0), [0], [1])[0]
    module = task.module(moved)
    module.save_pretrained(tmp_path / "adapter")  # type: ignore[operator]
    given = texts(5)[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = peft.PeftModel.from_pretrained(classifier(), tmp_path / "adapter").eval()
        assert torch.equal(loaded(**given).logits, module(**given).logits)
        assert not torch.equal(model.eval()(**given).logits, module(**given).logits)


def test_what_a_model_gives_that_cannot_be_used_is_said() -> None:
    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), x

    data = [(torch.randn(6, 4), torch.randint(CLASSES, (6,)))]
    with pytest.raises(InvalidInput, match="the model gives tuple; allowed: a tensor, or an output with .logits"):
        TorchTask(Pair(4, CLASSES), nn.CrossEntropyLoss(), data)
    with pytest.raises(InvalidInput, match="the model does not take these inputs: .*labels"):
        TorchTask(nn.Linear(4, CLASSES), None, data)
    with pytest.raises(InvalidInput, match="the model does not take these inputs: .*rows.*allowed: .*columns="):
        TorchTask(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), [{"rows": data[0][0], "label": data[0][1]}])


# Data


def linear(clients: list[Any], **settings: Any) -> TorchTask:
    torch.manual_seed(0)
    return TorchTask(nn.Linear(4, CLASSES), nn.CrossEntropyLoss(), clients, batch=4, **settings)


def test_every_form_of_data_gives_the_same_task() -> None:
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    rows = [(draw.normal(size=(n, 4)), draw.integers(CLASSES, size=n)) for n in (6, 9)]
    frozen = [(x.copy(), y.astype(np.int32)) for x, y in rows]
    for x, y in frozen:
        x.flags.writeable = y.flags.writeable = False
    columns = ("features", "kind")
    tables = [datasets.Dataset.from_dict({"features": x, "kind": y, "name": ["a"] * len(y)}) for x, y in rows]
    tensors = [TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in rows]

    def put_together(batch: list[Any]) -> Any:
        return torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])

    expected = linear([(torch.tensor(x, dtype=torch.float32), torch.tensor(y)) for x, y in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        others = {
            "float64": linear(rows),
            "read-only": linear(frozen),
            "backwards": linear([(x[::-1].copy()[::-1], y) for x, y in rows]),
            "lists": linear([(x.tolist(), y.tolist()) for x, y in rows]),
            "pandas": linear([(pandas.DataFrame(x), pandas.Series(y)) for x, y in rows]),
            "dict of columns": linear([{"features": x, "kind": y} for x, y in rows], columns=columns),
            "datasets": linear(tables, columns=columns),
            "rows of dicts": linear([[*table] for table in tables], columns=columns),
            "loader": linear([DataLoader(own, batch_size=4, shuffle=True) for own in tensors]),
            "collate": linear(tensors, collate=put_together),
            "iterable": linear([iter([*own]) for own in tensors]),
        }
    for form, task in others.items():
        assert task._data.inputs.dtype == torch.float32, form
        assert torch.equal(task._data.inputs, expected._data.inputs), form  # type: ignore[arg-type]
        assert torch.equal(task._data.targets, expected._data.targets), form
        assert task._data.targets.dtype == torch.int64, form


def test_rows_of_different_lengths_are_padded_to_one_by_collate() -> None:
    """Across clients too: theirs are put together in one call."""
    rows = [[{"input_ids": [1] * n, "label": 0} for n in sizes] for sizes in ((2, 3), (5,))]

    def pad(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(row["input_ids"]) for row in batch]
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return {"input_ids": padded, "labels": torch.tensor([row["label"] for row in batch])}

    class Counts(nn.Linear):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids.float())

    task = TorchTask(Counts(5, 2), nn.CrossEntropyLoss(), rows, collate=pad)
    assert task._data.inputs["input_ids"].sum(1).tolist() == [2, 3, 5]  # type: ignore[index]
    assert task.samples == [2, 1]


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ([{"x": torch.ones(2, 4), "y": torch.ones(2)}], {}, "allowed: .*columns=.*there are: x, y"),
        ([{"x": torch.ones(2, 4), "y": torch.ones(2)}], {"columns": ("x", "z")}, "no column 'z'; allowed: x, y"),
        (
            [{"x": torch.ones(2, 4), "y": torch.ones(2)}],
            {"columns": ["x", "y"]},
            r"columns is .*allowed: \(inputs, target",
        ),
        ([(torch.ones(2, 4), torch.ones(2).long())], {"columns": ("x", "y")}, "the data have no names"),
        ([(["a", "b"], [0, 1])], {}, "allowed: numbers"),
        ([(torch.ones(2, n), torch.ones(2).long()) for n in (4, 5)], {}, "data differ in shape: .*one shape for all"),
        ([[([1.0] * n, 0) for n in (4, 5)]], {}, "differ in length from row to row; allowed: padding .*collate="),
    ],
)
def test_data_that_cannot_be_used_are_refused_in_one_line(clients: Any, settings: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        linear(clients, **settings)
    assert "\n" not in str(refused.value)


class _Centred(nn.Linear):
    """Writes into what it is given."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.sub_(0.5))


def _numbers(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 4, generator=draw), torch.randint(CLASSES, (n,), generator=draw)) for n in sizes]


def _changing_targets(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    targets.neg_().add_(CLASSES - 1)
    return F.cross_entropy(outputs, targets)


@pytest.mark.parametrize("compute", ["one-by-one", "together"])
def test_evaluations_change_no_data_where_a_model_or_a_loss_writes_into_them(compute: str) -> None:
    for model, loss in ((_Centred(4, CLASSES), F.cross_entropy), (nn.Linear(4, CLASSES), _changing_targets)):
        task = TorchTask(model, loss, _numbers(5, 9), batch=3, compute=compute)
        start = task.initial()
        found = [(task.updates(start.unsqueeze(0), [1], [7]), task.evaluate(start).metrics) for _ in range(3)]
        assert all(torch.equal(found[0][0], update) and found[0][1] == metrics for update, metrics in found)
        inputs, targets = _numbers(5, 9)[1]
        with torch.no_grad():
            by_hand = float(loss(model(inputs), targets))
        assert task.evaluate(start).client_loss[1].item() == pytest.approx(by_hand, rel=1e-5)


class _SometimesTwice(nn.Module):
    """Randomness that torch's generators know nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        factor = (1 + (random.random() < 0.5)) * (1 + 2 * (np.random.rand() < 0.5))
        return factor * self.layer(inputs)


def test_what_a_model_draws_from_python_and_numpy_is_drawn_by_key() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    task = TorchTask(_SometimesTwice(), nn.CrossEntropyLoss(), _numbers(5, 9), batch=3)
    assert task.compute.name == "one-by-one"
    models, clients, keys = task.initial().expand(12, -1), [1] * 12, list(range(100, 112))
    found = task.updates(models, clients, keys)
    backwards = task.updates(models, clients, keys[::-1])
    assert torch.equal(found, backwards.flip(0))
    assert task.evaluate(task.initial()).metrics == task.evaluate(task.initial()).metrics
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    module = task.module(task.initial())
    inputs, targets = task._data.draw(clients, keys)
    factors = set()
    for own, input, target in zip(found, inputs, targets, strict=True):
        for factor in (1, 2, 3, 6):
            loss = F.cross_entropy(factor * module.layer(input), target)
            expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
            if torch.allclose(own, expected, rtol=1e-4, atol=1e-6):
                factors.add(factor)
    assert len(factors) > 1


class _OwnLoss(nn.Module):
    def __init__(self, weight: torch.Tensor | None, more: float) -> None:
        super().__init__()
        self.layer, self.weight, self.more = nn.Linear(4, CLASSES), weight, more

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.layer(x)
        loss = F.cross_entropy(logits, labels, weight=self.weight)
        if self.training:
            loss = loss + self.more * logits.square().mean()
        return SimpleNamespace(loss=loss, logits=logits)


@pytest.mark.parametrize(("weight", "more"), [(torch.tensor([0.1, 1.0, 4.0]), 0.0), (None, 0.5)])
def test_a_models_own_loss_is_not_taken_for_another_that_is_the_same_on_one_minibatch(weight: Any, more: float) -> None:
    (first, _), others = _numbers(5, 30)
    clients = [({"x": first}, torch.zeros(5).long()), ({"x": others[0]}, others[1])]
    model = _OwnLoss(weight, more)
    task = TorchTask(model, None, clients, batch=4)
    inputs, targets = task._data.draw([1], [3])
    loss = model(inputs["x"][0], targets[0]).loss
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(task.updates(task.initial().unsqueeze(0), [1], [3])[0], expected)


def test_a_hook_on_a_parameter_is_refused() -> None:
    model = nn.Linear(4, CLASSES)
    model.weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(InvalidInput, match="weight has a hook"):
        TorchTask(model, nn.CrossEntropyLoss(), _numbers(5))


def test_labels_of_bytes_are_classes() -> None:
    as_bytes = [(inputs, targets.to(torch.uint8)) for inputs, targets in _numbers(5, 9)]
    model = nn.Linear(4, CLASSES)
    one, other = (TorchTask(model, nn.CrossEntropyLoss(), data) for data in (_numbers(5, 9), as_bytes))
    assert one.evaluate(one.initial()).metrics == other.evaluate(other.initial()).metrics


def test_one_number_per_sample_has_no_accuracy() -> None:
    """The largest of one number is always the first."""
    clients = [(inputs, (targets > 0).long()) for inputs, targets in _numbers(5, 9)]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(1), targets.float())

    task = TorchTask(nn.Linear(4, 1), loss, clients, test=clients[0])
    assert "accuracy" not in task.evaluate(task.initial()).metrics
