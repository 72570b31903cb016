"""Apps as Flower's own templates have them become asynchronous by the documented lines: a mod, and `run_async`.

The ClientApps below are written as in quickstart-pytorch, quickstart-huggingface and quickstart-sklearn, on data
that are made here.
"""

from __future__ import annotations

import logging
from importlib import metadata

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from sklearn.linear_model import LogisticRegression
from tests.fleets.flower.fake_grid import FIRST_NODE
from tests.fleets.flower.test_learning_rate import InTurn
from torch import nn

from acefl import ACED, FedBuff, Stop
from acefl.flower import run_async, versions

NODES, CLASSES, FEATURES = 4, 3, 6
CENTRES = 3 * np.random.default_rng(0).normal(size=(CLASSES, FEATURES))


def data(partition: int, samples: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """A node's data: every class, but one far more often than the others."""
    draw = np.random.default_rng(100 + partition)
    shares = [0.6 if label == partition % CLASSES else 0.2 for label in range(CLASSES)]
    labels = draw.choice(CLASSES, samples, p=shares)
    labels[:CLASSES] = range(CLASSES)
    return CENTRES[labels] + draw.normal(size=(samples, FEATURES)), labels


class Net(nn.Module):
    """Small, with statistics of BatchNorm and a counter: arrays that are trained, averaged and carried along."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


def tensors(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = data(partition)
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)


def score(net: nn.Module, partition: int) -> tuple[float, float]:
    inputs, labels = tensors(partition)
    net.eval()
    with torch.no_grad():
        output = net(inputs)
    return float(nn.functional.cross_entropy(output, labels)), float((output.argmax(1) == labels).float().mean())


def pytorch_client(message: Message, context: Context) -> Message:
    """quickstart-pytorch: train and evaluate by the same arrays, config and metrics."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    if message.metadata.message_type == "evaluate":
        loss, accuracy = score(net, partition)
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": 90})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    inputs, labels = tensors(partition)
    optimizer = torch.optim.SGD(net.parameters(), lr=float(message.content["config"]["lr"]), momentum=0.9)
    net.train()
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"train_loss": float(loss), "num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


def test_quickstart_pytorch() -> None:
    torch.manual_seed(0)

    def global_evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = score(net, NODES)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    result = run_async(
        grid=InTurn(pytorch_client, NODES),
        rule=ACED(tau=20, warmup="seen"),
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": 0.05}),
        stop=Stop(arrivals=48),
        nodes=NODES,
        evaluate_fn=global_evaluate,
        surveys=1,
        drain=20.0,
    )
    last = max(result.evaluate_metrics_serverapp)
    assert result.evaluate_metrics_serverapp[0]["accuracy"] < 0.7
    assert result.evaluate_metrics_serverapp[last]["accuracy"] > 0.9
    assert result.evaluate_metrics_clientapp[max(result.evaluate_metrics_clientapp)]["eval_acc"] > 0.9
    assert result.train_metrics_clientapp
    state = result.arrays.to_torch_state_dict()
    Net().load_state_dict(state)
    assert int(state["layers.1.num_batches_tracked"]) == 0, "a counter was averaged"
    assert not torch.equal(state["layers.1.running_mean"], torch.zeros(16)), "statistics were not averaged"


def text_data(partition: int, samples: int) -> list[dict[str, torch.Tensor]]:
    """Minibatches of a node, as a DataLoader of tokenised texts gives them: the first word of a text says its kind."""
    draw = torch.Generator().manual_seed(partition)
    ids = torch.randint(1, 30, (samples, 6), generator=draw)
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids[:, 0] > 15).long()}
    return [{name: values[start : start + 10] for name, values in whole.items()} for start in range(0, samples, 10)]


def classifier(name: str) -> nn.Module:
    """A BERT of no size at all, as `AutoModelForSequenceClassification.from_pretrained(name)` would load a real one."""
    transformers = pytest.importorskip("transformers")
    assert name == "bert-tiny"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, num_labels=2, **sizes))  # type: ignore[no-any-return]


@torch.no_grad()
def judged(net: nn.Module, batches: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    net.eval()
    outputs = [net(**batch) for batch in batches]
    pairs = zip(outputs, batches, strict=True)
    right = [(found.logits.argmax(1) == batch["labels"]).float().mean() for found, batch in pairs]
    loss = sum(float(found.loss) for found in outputs) / len(outputs)
    return {"eval_loss": loss, "eval_acc": float(sum(right)) / len(right)}


def node_samples(partition: int) -> int:
    return 40 + 40 * partition


def huggingface_client(message: Message, context: Context) -> Message:
    """quickstart-huggingface: a sequence classifier by name from the run config, AdamW, the whole state dict."""
    net = classifier(str(context.run_config["model-name"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    batches = text_data(partition, node_samples(partition))
    samples = {"num-examples": node_samples(partition)}
    if message.metadata.message_type == "evaluate":
        metrics = MetricRecord({**judged(net, batches), **samples})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    optimizer = torch.optim.AdamW(net.parameters(), lr=float(context.run_config["local-lr"]))
    net.train()
    for batch in batches:
        loss = net(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    metrics = MetricRecord({"train_loss": float(loss), **samples})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def test_quickstart_huggingface() -> None:
    """Settings come by the run config; nodes' metrics are weighted by their samples, as Flower's strategies do it."""
    torch.manual_seed(0)
    grid = InTurn(huggingface_client, 3)
    for context in grid.contexts.values():
        context.run_config = {"model-name": "bert-tiny", "local-lr": 0.01}

    def global_evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
        net = classifier("bert-tiny")
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord(judged(net, text_data(99, 100)))

    result = run_async(
        grid=grid,
        rule=ACED(tau=20, warmup="seen"),
        initial_arrays=ArrayRecord(classifier("bert-tiny").state_dict()),
        stop=Stop(arrivals=30),
        nodes=3,
        evaluate_fn=global_evaluate,
        evaluations=2,
        surveys=1,
        drain=20.0,
    )
    server = result.evaluate_metrics_serverapp
    assert server[0]["eval_acc"] < 0.7
    assert server[max(server)]["eval_acc"] > 0.85
    net = classifier("bert-tiny")
    net.load_state_dict(result.arrays.to_torch_state_dict())
    own = [judged(net, text_data(partition, node_samples(partition))) for partition in range(3)]
    counts = [node_samples(partition) for partition in range(3)]
    found = result.evaluate_metrics_clientapp[max(result.evaluate_metrics_clientapp)]
    for name in ("eval_loss", "eval_acc"):
        weighted = sum(one[name] * count for one, count in zip(own, counts, strict=True)) / sum(counts)
        assert found[name] == pytest.approx(weighted, rel=1e-5)


def sklearn_client(message: Message, context: Context) -> Message:
    """quickstart-sklearn: coefficients and intercepts as a list of float64 arrays, a warm start, one epoch."""
    inputs, labels = data(int(context.node_config["partition-id"]))
    model = LogisticRegression(max_iter=5, warm_start=True)
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    with np.errstate(all="ignore"):
        model.fit(inputs, labels)
    content = RecordDict(
        {
            "arrays": ArrayRecord([model.coef_, model.intercept_]),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", [ACED(tau=20, warmup="seen"), FedBuff(buffer=2)], ids=str)
def test_quickstart_sklearn(method: ACED | FedBuff) -> None:
    result = run_async(
        grid=InTurn(sklearn_client, NODES),
        rule=method,
        initial_arrays=ArrayRecord([np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)]),
        stop=Stop(arrivals=24),
        nodes=NODES,
        drain=20.0,
    )
    model = LogisticRegression()
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = result.arrays.to_numpy_ndarrays()
    assert model.coef_.dtype == np.float64, "the app's own type was not kept"
    inputs, labels = data(NODES)
    assert model.score(inputs, labels) > 0.9


def test_the_grid_of_these_tests_numbers_nodes_as_flower_does() -> None:
    assert InTurn(sklearn_client, 2).contexts[1].node_id == FIRST_NODE + 1


@pytest.mark.parametrize(
    ("installed", "warned"), [("1.41.0", False), ("1.41.3", False), ("1.42.0", True), ("2.0", True)]
)
def test_versions_of_flower_that_were_not_tested_get_one_clear_line(
    installed: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    with caplog.at_level(logging.WARNING, "acefl"):
        versions.warn_if_untested()
    assert (f"flwr is {installed}; tested with 1.41" in caplog.text) == warned
