"""`run_async` with its real threads, on a grid whose nodes answer at once, or get stuck where Flower's do."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from tests.fleets.flower.fake_grid import FIRST_NODE, FakeGrid
from tests.fleets.flower.test_bad_answers import OPTIMA, START

from acefl import ACE, ACED, InvalidInput, Stop, load
from acefl.flower import Wires, answer, run_async

CLIENTS = 3
ARRAYS = ArrayRecord({"w": Array(START.numpy()), "steps": Array(torch.tensor(7).numpy())})
LIMIT = 120.0  # seconds after which a test that is stuck gives up


class ReadyGrid(FakeGrid):
    """Every node answers as soon as it is asked; pulls of `stuck` nodes' answers block, as a paused upload does."""

    def __init__(self, client: object, stuck: dict[int, threading.Event] | None = None) -> None:
        super().__init__(client, CLIENTS, ())  # type: ignore[arg-type]
        self._lock = threading.RLock()
        self._stuck = stuck or {}

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_NODE + client for client in range(CLIENTS)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._lock:
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        [message_id] = message_ids
        client = self.waiting[message_id].metadata.dst_node_id - FIRST_NODE
        if client in self._stuck:
            assert self._stuck[client].wait(LIMIT)
        with self._lock:
            self._turn = {client: None}
            return super().pull_messages([message_id])


def client_app(message: Message, context: Context) -> Message:
    """Trains with the mod as any ClientApp does, and evaluates."""
    client = context.node_id - FIRST_NODE
    model = torch.from_numpy(message.content["arrays"]["w"].numpy())
    distance = float((model - OPTIMA[client]).norm())
    if message.metadata.message_type == "evaluate":
        metrics = MetricRecord({"loss": distance, "accuracy": 1 / (1 + client), "num-examples": 10 + client})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    assert int(message.content["arrays"]["steps"].numpy()) == 7, "an array of whole numbers was changed"
    trained = model - 0.5 * (model - OPTIMA[client])
    arrays = ArrayRecord({"w": Array(trained.numpy()), "steps": message.content["arrays"]["steps"]})
    metrics = MetricRecord({"train_loss": distance, "num-examples": 10 + client})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def test_a_server_app_gets_flowers_own_result_and_a_record(tmp_path: Path) -> None:
    result = run_async(
        ReadyGrid(client_app),
        ACED(tau=10),
        ARRAYS,
        lr=0.5,
        stop=Stop(arrivals=60),
        nodes=CLIENTS,
        wires=Wires(uplink="bf16"),
        evaluate_fn=lambda version, arrays: MetricRecord({"loss": float(torch.tensor(arrays["w"].numpy()).norm())}),
        evaluations=6,
        surveys=3,
        out=tmp_path / "run",
        drain=LIMIT,
    )
    assert list(result.arrays) == ["w", "steps"]
    assert int(result.arrays["steps"].numpy()) == 7
    last = max(result.evaluate_metrics_clientapp)
    weights = torch.tensor([10.0, 11.0, 12.0])
    accuracy = float((weights * torch.tensor([1.0, 1 / 2, 1 / 3])).sum() / weights.sum())
    assert result.evaluate_metrics_clientapp[last]["accuracy"] == pytest.approx(accuracy)
    assert result.train_metrics_clientapp
    assert max(result.evaluate_metrics_serverapp) == last
    made = load(tmp_path / "run")
    assert torch.equal(made.model, torch.from_numpy(result.arrays["w"].numpy()))
    assert torch.allclose(made.model, OPTIMA[:CLIENTS].mean(0), atol=0.1)
    assert [row["samples"] for row in made.clients] == [10, 11, 12]
    assert [row["accuracy"] for row in made.clients] == pytest.approx([1, 1 / 2, 1 / 3])
    assert made.final["client_loss"] > 0
    assert (made.events["uplink"] == 2 * START.numel()).all()
    assert (tmp_path / "run" / "report.html").exists()


def test_training_never_waits_for_an_evaluation(tmp_path: Path) -> None:
    """The evaluation of the first model goes on until the whole budget is spent; then the final one is evaluated."""
    arrivals = 0
    trained = threading.Event()
    judged = []

    class Watch:
        def arrived(self, arrival: object, reason: str) -> None:
            nonlocal arrivals
            arrivals += 1
            if arrivals >= 30:
                trained.set()

        def stepped(self, step: object, server: object) -> None: ...

        def evaluated(self, row: dict[str, float]) -> None:
            judged.append(row["step"])

    def slow(version: int, arrays: ArrayRecord) -> MetricRecord:
        assert trained.wait(LIMIT), "training waits for this"
        return MetricRecord({"loss": float(version)})

    run_async(
        ReadyGrid(client_app), ACE(), ARRAYS, lr=0.5, stop=Stop(arrivals=30), nodes=CLIENTS, evaluate_fn=slow,
        evaluations=30, observers=[Watch()], drain=1.0,
    )  # fmt: skip
    assert judged[0] == 0
    assert judged[-1] >= 10
    assert len(judged) < 30, "an evaluation that was due while another was going on was queued up"


def test_training_never_waits_for_what_the_nodes_think_of_the_model() -> None:
    """The nodes are asked early on, and their findings do not come until the whole budget is spent."""
    arrivals = 0
    trained = threading.Event()

    class SlowJudges(ReadyGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            [message_id] = message_ids
            if self.waiting[message_id].metadata.message_type == "evaluate":
                assert trained.wait(LIMIT), "training waits for this"
            return super().pull_messages([message_id])

    class Watch:
        def arrived(self, arrival: object, reason: str) -> None:
            nonlocal arrivals
            arrivals += 1
            if arrivals >= 40:
                trained.set()

        def stepped(self, step: object, server: object) -> None: ...

        def evaluated(self, row: dict[str, float]) -> None: ...

    result = run_async(
        SlowJudges(client_app), ACE(warmup="seen"), ARRAYS, lr=0.1, stop=Stop(arrivals=40), nodes=CLIENTS, surveys=4,
        observers=[Watch()], drain=LIMIT,
    )  # fmt: skip
    asked = sorted(result.evaluate_metrics_clientapp)
    assert len(asked) == 4
    assert asked[0] <= 20, "the nodes were asked only when training was over"


def test_a_node_that_stops_in_mid_upload_holds_up_nobody_else() -> None:
    upload = threading.Event()

    class Watch:
        def __init__(self) -> None:
            self.by_client = [0] * CLIENTS

        def arrived(self, arrival: object, reason: str) -> None:
            self.by_client[arrival.client] += 1  # type: ignore[attr-defined]
            if sum(self.by_client[1:]) >= 20:
                upload.set()

        def stepped(self, step: object, server: object) -> None: ...

        def evaluated(self, row: dict[str, float]) -> None: ...

    watch = Watch()
    run_async(
        ReadyGrid(client_app, {0: upload}), ACE(warmup="seen"), ARRAYS, lr=0.1, stop=Stop(arrivals=40), nodes=CLIENTS,
        observers=[watch], drain=1.0,
    )  # fmt: skip
    assert watch.by_client[0] > 0
    assert min(watch.by_client[1:]) >= 5


def test_both_kinds_of_client_code_send_the_same_update() -> None:
    """A ClientApp with the mod that makes one SGD step of size 1, and one that answers with its gradient."""

    def sgd(message: Message, context: Context) -> Message:
        model = torch.from_numpy(message.content["arrays"]["w"].numpy())
        gradient = model - OPTIMA[context.node_id - FIRST_NODE]
        arrays = ArrayRecord({"w": Array((model - gradient).numpy()), "steps": message.content["arrays"]["steps"]})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    def gradient(message: Message, context: Context) -> Message:
        model = torch.from_numpy(message.content["arrays"]["w"].numpy())
        return answer(message, context, {"w": model - OPTIMA[context.node_id - FIRST_NODE]})

    def module(message: Message, context: Context) -> Message:
        holder = torch.nn.Module()
        holder.w = torch.nn.Parameter(torch.from_numpy(message.content["arrays"]["w"].numpy()))
        (0.5 * (holder.w - OPTIMA[context.node_id - FIRST_NODE]).square().sum()).backward()
        return answer(message, context, holder, {"num-examples": 3})

    models = []
    for app in (sgd, gradient, module):
        result = run_async(ReadyGrid(app), ACE(), ARRAYS, lr=1.0, stop=Stop(steps=1), nodes=CLIENTS, drain=1.0)
        models.append(torch.from_numpy(result.arrays["w"].numpy()))
    assert torch.allclose(models[0], OPTIMA[:CLIENTS].mean(0), atol=1e-5)
    assert torch.allclose(models[1], models[0], atol=1e-6)
    assert torch.allclose(models[2], models[0], atol=1e-6)


def test_the_train_config_reaches_the_clients() -> None:
    seen = []

    def app(message: Message, context: Context) -> Message:
        seen.append(message.content["config"]["local-lr"])
        return client_app(message, context)

    config = ConfigRecord({"local-lr": 0.25})
    run_async(
        ReadyGrid(app), ACE(), ARRAYS, lr=0.1, stop=Stop(arrivals=6), nodes=CLIENTS, train_config=config, drain=1.0
    )  # fmt: skip
    assert set(seen) == {0.25}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"uplink": "fp16"}, "uplink is 'fp16'; allowed: fp32, bf16, int8"),
        ({"ttl": 0.0}, "ttl is 0.0; allowed: above 0 seconds"),
        ({"patience": -1.0}, "patience is -1.0; allowed: above 0 seconds"),
    ],
)
def test_wrong_settings_get_one_clear_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidInput, match=line):
        Wires(**settings)  # type: ignore[arg-type]


def test_a_place_that_holds_other_files_is_refused_before_anybody_trains(tmp_path: Path) -> None:
    """At the end it would be too late: what was learnt would be gone."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("ten years of work")
    grid = ReadyGrid(client_app)
    with pytest.raises(InvalidInput, match="theirs exists and is not an acefl record"):
        run_async(grid, ACE(), ARRAYS, lr=0.5, stop=Stop(arrivals=9), nodes=CLIENTS, out=tmp_path / "theirs", drain=1)
    assert not grid.answered


def test_a_model_without_numbers_to_train_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no arrays of floating-point numbers"):
        run_async(
            ReadyGrid(client_app),
            ACE(),
            ArrayRecord({"n": Array(torch.tensor([1]).numpy())}),
            lr=1.0,
            stop=Stop(steps=1),
        )
