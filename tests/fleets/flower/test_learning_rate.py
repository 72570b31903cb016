"""A learning rate that nobody chose: right for any method and any number of nodes that send trained arrays."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from tests.fleets.flower.fake_grid import FIRST_NODE, FakeGrid

from acefl import ACE, ASGD, Every, FedBuff, Stop, load, rules
from acefl.core.optimizers import SGD, Adam, Momentum, Nesterov, Optimizer
from acefl.core.rule import Rule, Upload
from acefl.core.server import Server
from acefl.core.types import Arrival
from acefl.fleets.flower.roster import EverybodyFails
from acefl.flower import answer, run_async
from acefl.flower.learning_rate import default_lr, steps_per_round

DIM = 5
OPTIMA = torch.randn(8, DIM, generator=torch.Generator().manual_seed(1))
START = 10 * torch.ones(DIM)
PLAIN = [cls() for cls in rules.METHODS.values() if cls().uploads is not Upload.MODEL and cls().optimizer is None]


class InTurn(FakeGrid):
    """All nodes answer as soon as they are asked."""

    def __init__(self, client: object, nodes: int) -> None:
        super().__init__(client, nodes, ())  # type: ignore[arg-type]
        self._lock = threading.RLock()

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_NODE + client for client in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._lock:
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._lock:
            [message_id] = message_ids
            self._turn = {self.waiting[message_id].metadata.dst_node_id - FIRST_NODE: None}
            return super().pull_messages([message_id])


def train(message: Message, context: Context) -> Message:
    """Goes most of the way to its own optimum."""
    model = torch.from_numpy(message.content["arrays"]["w"].numpy())
    trained = model - 0.8 * (model - OPTIMA[context.node_id - FIRST_NODE])
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(trained.numpy())})}), reply_to=message)


@pytest.mark.parametrize("nodes", [2, 4, 9])
@pytest.mark.parametrize("method", PLAIN, ids=lambda method: type(method).__name__)
def test_the_model_moves_by_one_mean_update_while_everybody_answers_once(method: rules.Method, nodes: int) -> None:
    steps = steps_per_round(method, nodes)
    assert default_lr(method, nodes) * max(steps, 1.0) == pytest.approx(1.0)
    assert 0 < steps <= nodes


def test_known_cases() -> None:
    assert default_lr(ACE(), 4) == default_lr(ASGD(), 4) == pytest.approx(1 / 4)
    assert default_lr(FedBuff(buffer=2), 8) == pytest.approx(1 / 4)
    assert default_lr(FedBuff(buffer=8), 8) == default_lr(rules.FedAvg(), 8) == default_lr(rules.FedAsync(), 8) == 1.0
    assert default_lr(ACE(), 4, Momentum(0.9)) == pytest.approx(0.1 / 4)
    assert default_lr(rules.FedAdam(), 8) == default_lr(rules.FedAvg(), 8, Adam()) == 0.01


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        *((ASGD(), one) for one in (None, SGD(), Momentum(0.5), Nesterov(0.5), Nesterov(0.5, period=3, c=0.2))),
        (FedBuff(buffer=2), Nesterov(0.5, period=2)),
        (rules.DelayedNesterov(beta=0.5), None),
    ],
    ids=repr,
)
def test_with_momentum_too_the_model_moves_by_one_mean_update_a_round(
    method: rules.Method, optimizer: Optimizer | None
) -> None:
    """In the long run, while everybody sends the same."""
    nodes, rounds, start = 4, 30, torch.zeros(1)
    server = Server(start, method.build(nodes, start), default_lr(method, nodes, optimizer), nodes, optimizer=optimizer)

    def go(first: int) -> float:
        before = float(server.model)
        for task in range(first, first + rounds * nodes):
            arrival = Arrival(task % nodes, torch.ones(1), server.version, server.version, task)
            server.handle([arrival])
        return before - float(server.model)

    go(0)
    assert go(rounds * nodes) == pytest.approx(rounds, rel=1e-3)


def test_a_method_of_ones_own_that_is_no_dataclass_gets_one_too() -> None:
    class Own(rules.Method):
        def build(self, clients: int, like: torch.Tensor, samples: object = None) -> Rule:
            return FedBuff(buffer=2).build(clients, like)

    assert default_lr(Own(), 8) == pytest.approx(1 / 4)


def test_a_rule_that_lives_in_a_file_is_tried_without_it(tmp_path: Path) -> None:
    assert default_lr(ACE(home=tmp_path / "table.bin"), 4) == pytest.approx(1 / 4)
    assert not (tmp_path / "table.bin").exists()


FAR = 100.0  # clipped to less, no method gets from START to the optimum in so few steps
METHODS = [rules.Clipped(threshold=FAR), *(cls() for cls in rules.METHODS.values() if cls is not rules.Clipped)]


@pytest.mark.parametrize("method", [method for method in METHODS if method.optimizer is None], ids=rules.label)
def test_every_method_gets_there_without_swinging(method: rules.Method) -> None:
    nodes = 4
    optimum = OPTIMA[:nodes].mean(0)
    first = float((START - optimum).norm())
    distances: list[float] = []

    def judge(version: int, arrays: ArrayRecord) -> MetricRecord:
        distances.append(float((torch.from_numpy(arrays["w"].numpy()) - optimum).norm()))
        return MetricRecord({"loss": distances[-1]})

    result = run_async(
        InTurn(train, nodes),
        method,
        ArrayRecord({"w": Array(START.numpy())}),
        stop=Stop(arrivals=20 * nodes),
        nodes=nodes,
        evaluate_fn=judge,
        drain=1.0,
    )
    assert max(distances) <= first * 1.001
    assert float((torch.from_numpy(result.arrays["w"].numpy()) - optimum).norm()) < 0.15 * first


def test_it_is_told_at_the_start_and_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "acefl"):
        run_async(
            InTurn(train, 4), ACE(), ArrayRecord({"w": Array(START.numpy())}), stop=Stop(arrivals=8), nodes=4,
            out=tmp_path / "run", drain=1.0,
        )  # fmt: skip
    assert "lr is 0.25: ACE with 4 nodes" in caplog.text
    assert load(tmp_path / "run").config["lr"] == 0.25


def test_gradients_are_refused_where_no_learning_rate_was_given() -> None:
    def gradient(message: Message, context: Context) -> Message:
        return answer(message, context, torch.ones(DIM))

    with pytest.raises(EverybodyFails, match="gradient-without-lr"):
        run_async(InTurn(gradient, 2), ACE(), ArrayRecord({"w": Array(START.numpy())}), stop=Stop(arrivals=8), nodes=2)


def test_a_resumed_run_keeps_its_learning_rate_whoever_is_there(tmp_path: Path) -> None:
    arrays = ArrayRecord({"w": Array(START.numpy())})

    class Crash:
        def __init__(self, after: int) -> None:
            self.left = after

        def arrived(self, arrival: object, reason: str) -> None: ...

        def evaluated(self, row: object) -> None: ...

        def stepped(self, step: object, server: object) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def state_dict(self) -> dict[str, object]:
            return {}

        def load_state_dict(self, state: object) -> None: ...

    def go(nodes: int, after: int) -> None:
        run_async(
            InTurn(train, nodes), ACE(warmup="seen"), arrays, stop=Stop(arrivals=40), nodes=nodes, out=tmp_path / "run",
            checkpoint=Every(arrivals=4), observers=[Crash(after)], drain=1.0,  # type: ignore[list-item]
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        go(4, after=10)
    go(2, after=10**6)
    assert load(tmp_path / "run").config["lr"] == 0.25
