"""`examples/flower-lora`: LoRA on language models by transformers' Trainer, in this process and on a real SuperLink."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict, unflatten_dict
from tests.fleets.flower.test_learning_rate import InTurn
from tests.fleets.flower.test_real_flower import LONGEST, watch

from acefl import load
from acefl.fleets.flower.loopback import NAME, Loopback, free_port
from acefl.hf import task_seed

peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")

APP = Path(__file__).parents[3] / "examples" / "flower-lora"
DEFAULTS = flatten_dict(tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(APP)
    names = ("client_app", "dataset", "models", "server_app")
    return SimpleNamespace(**{name: importlib.import_module(f"flower_lora.{name}") for name in names})


class Nodes(InTurn):
    """Runs the app's own functions, and keeps the train messages."""

    def __init__(self, app: Any, nodes: int, config: dict[str, Any]) -> None:
        self.trained: list[Message] = []

        def client(message: Message, context: Context) -> Message:
            if message.metadata.message_type == "evaluate":
                return app.client_app.evaluate(message, context)  # type: ignore[no-any-return]
            self.trained.append(message)
            return app.client_app.train(message, context)  # type: ignore[no-any-return]

        super().__init__(client, nodes)
        for context in self.contexts.values():
            context.run_config = config


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(3, 40).unsqueeze(0)).logits  # type: ignore[no-any-return]


def run(app: Any, nodes: int, **settings: Any) -> Nodes:
    config = {**DEFAULTS, "strategy.nodes": nodes, **{name.replace("__", "."): v for name, v in settings.items()}}
    grid = Nodes(app, nodes, config)
    app.server_app.app(grid, Context(7, 1, {}, RecordDict(), config))
    return grid


@pytest.mark.filterwarnings("ignore")  # of accelerate and transformers
def test_one_node_alone_is_plain_local_training(app: Any, tmp_path: Path) -> None:
    grid = run(app, 1, **{"num-arrivals": 1, "train.save-path": str(tmp_path), "strategy.surveys": 0})
    alone = app.client_app.get_trainer(grid.contexts[0], seed=task_seed(grid.trained[0]))
    alone.train()
    loaded = peft.PeftModel.from_pretrained(app.models.get_base("tiny"), tmp_path / "peft_1")
    torch.testing.assert_close(logits(loaded), logits(alone.model), rtol=1e-5, atol=1e-6)
    untrained = app.models.get_model(unflatten_dict(DEFAULTS)["model"])
    assert (logits(loaded) - logits(untrained)).abs().max() > 0.01


@pytest.mark.filterwarnings("ignore")
def test_nodes_train_on_their_own_texts_and_judge_the_model_on_others(app: Any, tmp_path: Path) -> None:
    for partition in range(2):
        (tmp_path / "texts" / f"{partition}").mkdir(parents=True)
        for number in range(5):
            (tmp_path / "texts" / f"{partition}" / f"{number}.txt").write_text(f"text {partition} {number} " * 20)
    grid = run(
        app, 2,
        **{
            "num-arrivals": 3, "out": str(tmp_path / "out"), "dataset.name": str(tmp_path / "texts"),
            "model.lora.freeze-a": True, "strategy.surveys": 1, "train.training-arguments.learning-rate": 0.02,
        },
    )  # fmt: skip
    made = load(tmp_path / "out")
    assert made.history["client_loss"].notna().any(), "no node judged the model on its held-out texts"
    assert made.model.numel() == 2 * 2 * 64 * 8, "more than the factors B of query and value travelled"
    assert len({task_seed(message) for message in grid.trained}) == len(grid.trained)
    with pytest.raises(ValueError, match=r"a row needs 4000 \(train.seq-length\)"):
        app.dataset.load_data(str(tmp_path / "texts"), 0, app.models.get_tokenizer("tiny"), 4000)


@pytest.mark.flower
@pytest.mark.slow
def test_on_a_real_superlink_stopped_and_started_again(app: Any, tmp_path: Path) -> None:
    """`flwr stop` leaves a checkpoint, the same `flwr run` goes on from it, and `flwr log` tells both."""
    live = free_port()
    settings = {
        "num-arrivals": 8, "strategy.surveys": 1, "train.save-every-version": 2, "checkpoint": 1000, "live": live,
        "train.save-path": str(tmp_path / "adapters"), "out": str(tmp_path / "out"),
    }  # fmt: skip
    with Loopback(tmp_path / "flower", secure=False) as federation:
        for node in range(2):
            federation.start_node(node, f"partition-id={node} num-partitions=2")
        first = federation.run(APP, settings)
        watch(live, lambda state: state["arrivals"] >= 2)
        federation.flwr("stop", first, NAME)
        assert federation.wait(first, LONGEST) == "finished:stopped", federation.log("superlink")
        second = federation.run(APP, settings)
        assert federation.wait(second, LONGEST) == "finished:completed", federation.log("superlink")
        told = federation.flwr("log", second, NAME, "--show")
        stopped = federation.flwr("log", first, NAME, "--show")
    assert "found a checkpoint" in told
    assert "as before the run was interrupted" in told
    assert "lr is 0.5: ACED" in stopped
    made = load(tmp_path / "out")
    assert made.arrivals == len(made.events) >= 8
    assert made.history["client_loss"].notna().any()
    model = app.models.get_model(unflatten_dict(DEFAULTS)["model"])
    start = 0
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.copy_(made.model[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
    adapter = tmp_path / "adapters" / f"peft_{made.steps}"
    loaded = peft.PeftModel.from_pretrained(app.models.get_base("tiny"), adapter)
    assert torch.equal(logits(loaded), logits(model))
