"""transformers' Trainer as an asynchronous client: one alone does what it does by itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acefl.core.errors import InvalidInput

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
flwr_app = pytest.importorskip("flwr.app")

from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from acefl.fleets.flower.client import send_update  # noqa: E402
from acefl.fleets.flower.records import MODEL, ORDER, ModelLayout, Order, read_answer  # noqa: E402
from acefl.hf import client_update, load_arrays, trained_arrays  # noqa: E402


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
