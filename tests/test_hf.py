"""transformers' Trainer as an asynchronous client: one alone does what it does by itself."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acefl import ACE, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.core.server import Server
from acefl.core.types import Step
from acefl.runs.observers import Observer
from acefl.tasks.own_loss import next_token_loss

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
flwr_app = pytest.importorskip("flwr.app")

from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from acefl.fleets.flower.client import send_update  # noqa: E402
from acefl.fleets.flower.records import MODEL, ORDER, ModelLayout, Order, read_answer  # noqa: E402
from acefl.flower import run_async  # noqa: E402
from acefl.hf import SaveAdapters, client_update, load_arrays, task_seed, trained_arrays  # noqa: E402
from tests.fleets.flower.test_learning_rate import InTurn  # noqa: E402


def adapted() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=12,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)


def trainer(model: nn.Module, folder: Path) -> Any:
    draw = torch.Generator().manual_seed(1)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(12, (10, 6), generator=draw)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=0.05,
        seed=7,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)


def train_message(arrays: Any) -> Any:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1  # as Flower's processes do
    content = flwr_app.RecordDict({MODEL: arrays, ORDER: Order("run", 3, 2).record()})
    return flwr_app.Message(content, dst_node_id=1, message_type="train")


@pytest.mark.filterwarnings("ignore")  # of accelerate and transformers
def test_one_client_alone_is_plain_local_training(tmp_path: Path) -> None:
    model = adapted()
    start = trained_arrays(model)
    start = flwr_app.ArrayRecord({name: values + 0.1 for name, values in start.to_torch_state_dict().items()})
    message = train_message(start)
    context = flwr_app.Context(0, 1, {}, flwr_app.RecordDict(), {})
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}

    reply = send_update(message, context, lambda sent, _: client_update(trainer(model, tmp_path), sent))

    alone = adapted()
    load_arrays(alone, start)
    trainer(alone, tmp_path).train()
    layout = ModelLayout.of(start)
    found = read_answer(reply.content, Order("run", 3, 2), layout.dim, 1 << 20)
    server = layout.flat(start) - found.update  # a step of lr 1
    torch.testing.assert_close(server, layout.flat(trained_arrays(alone)), rtol=1e-6, atol=1e-7)
    assert float(found.update.abs().max()) > 0.01
    assert found.samples == 10
    assert found.metrics["train_loss"] > 0
    assert all(torch.equal(values, dict(model.named_parameters())[name]) for name, values in frozen.items())


def test_the_adapter_alone_travels_and_is_saved_as_one(tmp_path: Path) -> None:
    model = adapted()
    arrays = trained_arrays(model)
    assert set(arrays) == {name for name, _ in model.named_parameters() if "lora" in name}
    other = flwr_app.ArrayRecord({name: values + 1.0 for name, values in arrays.to_torch_state_dict().items()})
    load_arrays(model, other)
    model.save_pretrained(tmp_path / "peft_12")  # type: ignore[operator]
    base = copy.deepcopy(adapted().unload())  # type: ignore[operator]
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "peft_12").eval()
    ids = torch.arange(6).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_arrays_of_another_model_are_refused() -> None:
    arrays = trained_arrays(adapted())
    with pytest.raises(InvalidInput, match="arrays and trainable parameters differ: .*; allowed: those of one model"):
        load_arrays(nn.Linear(2, 2), arrays)
    with pytest.raises(InvalidInput, match="the model has no trainable parameters"):
        trained_arrays(nn.ReLU())
    wrong = flwr_app.ArrayRecord({"weight": torch.zeros(3, 3), "bias": torch.zeros(2)})
    with pytest.raises(InvalidInput, match=r"array weight has shape \(3, 3\); allowed: \(2, 2\)"):
        load_arrays(nn.Linear(2, 2), wrong)


class Remembers(Observer):
    """Every version of the server's model."""

    def __init__(self) -> None:
        self.models: dict[int, torch.Tensor] = {}

    def stepped(self, step: Step, server: Server) -> None:
        self.models[step.version] = server.model.clone()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for name, p in model.named_parameters() if "lora" in name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("freeze_a", [False, True])
def test_saved_adapters_are_the_servers_versions_bit_for_bit(freeze_a: bool, tmp_path: Path) -> None:
    def new_model() -> nn.Module:
        model = adapted()
        for name, parameter in model.named_parameters():
            if freeze_a and "lora_A" in name:
                parameter.requires_grad_(False)
        return model

    def client(message: Any, context: Any) -> Any:
        return client_update(trainer(new_model(), tmp_path / "trainer"), message)

    model, seen = new_model(), Remembers()
    first = flat(model)
    saving = SaveAdapters(model, tmp_path / "adapters", every=2)
    result = run_async(
        InTurn(client, 2), ACE(warmup="seen"), trained_arrays(model), stop=Stop(arrivals=5), nodes=2,
        observers=[saving, seen], drain=5.0,
    )  # fmt: skip
    last = saving.save(result.arrays)

    assert torch.equal(flat(model), first), "saving changed the model that it was given"
    versions = sorted({*(v for v in seen.models if v and v % 2 == 0), max(seen.models)})
    assert {path.name for path in (tmp_path / "adapters").iterdir()} == {f"peft_{v}" for v in versions}
    assert last.name == f"peft_{max(versions)}"
    for version in versions:
        loaded = peft.PeftModel.from_pretrained(adapted().unload(), tmp_path / "adapters" / f"peft_{version}")  # type: ignore[operator]
        expected, start = new_model(), 0
        with torch.no_grad():
            for parameter in (p for p in expected.parameters() if p.requires_grad):
                parameter.copy_(seen.models[version][start : start + parameter.numel()].view_as(parameter))
                start += parameter.numel()
        assert torch.equal(flat(loaded), flat(expected))
        ids = torch.arange(6).unsqueeze(0)
        with torch.no_grad():
            assert torch.equal(loaded.eval()(ids).logits, expected.eval()(ids).logits)
    assert not torch.equal(seen.models[versions[0]], seen.models[versions[-1]])


def test_adapters_of_simulations_are_saved_too(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    clients = [({"input_ids": ids}, ids) for ids in torch.randint(12, (2, 6, 5), generator=draw)]
    task = tasks.TorchTask(adapted(), next_token_loss, clients, batch=2)
    saving = SaveAdapters(task.module(task.initial()), tmp_path, every=4)
    run = simulate(task, ACE(), lr=0.5, stop=Stop(arrivals=9), observers=[saving])
    loaded = peft.PeftModel.from_pretrained(adapted().unload(), saving.save(run.model))  # type: ignore[operator]
    assert torch.equal(flat(loaded), run.model)
    assert {path.name for path in tmp_path.iterdir()} == {"peft_4", "peft_8", f"peft_{run.steps}"}


def test_a_resumed_run_goes_on_counting_versions_and_replaces_those_it_makes_again(tmp_path: Path) -> None:
    model = adapted()
    saving, again = SaveAdapters(model, tmp_path, every=5), SaveAdapters(model, tmp_path, every=5)
    saving.version = 5
    saving.save(torch.zeros(len(flat(model))))
    again.load_state_dict(saving.state_dict())
    again.save(torch.ones(len(flat(model))))
    loaded = peft.PeftModel.from_pretrained(adapted().unload(), tmp_path / "peft_5")  # type: ignore[operator]
    assert torch.equal(flat(loaded), torch.ones(len(flat(model))))


def test_what_is_no_adapter_is_neither_saved_nor_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidInput, match="model is Linear; allowed: a PEFT model"):
        SaveAdapters(nn.Linear(2, 2), tmp_path)
    with pytest.raises(InvalidInput, match="every is 0; allowed: at least 1"):
        SaveAdapters(adapted(), tmp_path, every=0)
    more = adapted()
    dict(more.named_parameters())["base_model.model.model.norm.weight"].requires_grad_(True)
    with pytest.raises(InvalidInput, match="norm.weight would not be saved; allowed: trainable parameters of the ada"):
        SaveAdapters(more, tmp_path)
    saving = SaveAdapters(adapted(), tmp_path, every=1)
    (tmp_path / "peft_3").mkdir()
    (tmp_path / "peft_3" / "thesis.tex").write_text("years of work")
    step, server = Step(3, 3, 1.0, True), SimpleNamespace(model=torch.zeros(len(flat(adapted()))))
    saving.stepped(step, server)  # type: ignore[arg-type]  # a run goes on
    assert "peft_3 exists and is no adapter" in caplog.text
    assert [path.name for path in (tmp_path / "peft_3").iterdir()] == ["thesis.tex"]
    with pytest.raises(InvalidInput, match="peft_3 exists and is no adapter"):
        saving.save(torch.zeros(len(flat(adapted()))))
    with pytest.raises(InvalidInput, match="the server trains 3 numbers, the adapter has"):
        saving.started(SimpleNamespace(server=SimpleNamespace(model=torch.zeros(3))))  # type: ignore[arg-type]


def test_every_task_has_a_seed_of_its_own() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1  # as Flower's processes do

    def seed(task: int, seed: int = 0) -> int:
        content = flwr_app.RecordDict({ORDER: Order("run", task, 2).record()})
        return task_seed(flwr_app.Message(content, dst_node_id=1, message_type="train"), seed)

    seeds = [seed(task) for task in range(100)]
    assert len({*seeds, seed(0, 1)}) == 101
    assert seeds[7] == seed(7)
    assert all(0 <= one < 2**31 for one in seeds)
