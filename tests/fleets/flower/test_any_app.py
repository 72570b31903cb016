"""Apps as Flower's own templates have them become asynchronous by the documented lines: a mod, and `run_async`.

The ClientApps below are written as in quickstart-pytorch and quickstart-sklearn, on data that are made here.
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
