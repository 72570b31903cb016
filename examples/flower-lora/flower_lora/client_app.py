"""A ClientApp that trains with transformers' Trainer; `send_update` and `client_update` make it asynchronous."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.config import unflatten_dict
from transformers import Trainer, TrainingArguments

from acefl.flower import send_update
from acefl.hf import client_evaluation, client_update, task_seed
from flower_lora.dataset import load_data
from flower_lora.models import get_model, get_tokenizer

app = ClientApp(mods=[send_update])


@app.train()
def train(message: Message, context: Context) -> Message:
    return client_update(get_trainer(context, seed=task_seed(message)), message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return client_evaluation(get_trainer(context), message)


def get_trainer(context: Context, seed: int = 0) -> Trainer:
    """As one would write it without Flower."""
    config = unflatten_dict(context.run_config)
    arguments = {name.replace("-", "_"): value for name, value in config["train"]["training-arguments"].items()}
    usual: dict[str, Any] = {
        "output_dir": str(Path(tempfile.gettempdir()) / "flower-lora"),
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": seed,
    }
    tokenizer = get_tokenizer(config["model"]["name"])
    partition = int(context.node_config["partition-id"])
    rows, held_out = load_data(config["dataset"]["name"], partition, tokenizer, config["train"]["seq-length"])
    return Trainer(
        model=get_model(config["model"]),
        args=TrainingArguments(**{**usual, **arguments}),
        train_dataset=rows,  # type: ignore[arg-type]  # a list is all it needs
        eval_dataset=held_out,  # type: ignore[arg-type]
    )
