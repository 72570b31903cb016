"""Hugging Face on Flower: a client that trains with transformers' `Trainer` (or trl's `SFTTrainer`) in a line.

    app = ClientApp(mods=[acefl.flower.send_update])

    @app.train()
    def train(message, context):
        return client_update(my_trainer(context), message)

The trainable parameters alone travel, an adapter of PEFT for example. The server starts from
`trained_arrays(model)`; `SaveAdapters` writes versions of it on the way, and `load_arrays(model, result.arrays)` puts
what came out back into the model. `examples/flower-lora` is a whole app. The replies are those of any Flower app, so
they serve Flower's own strategies as well. Needs `acefl[flower,lm]`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from acefl.core import rng as keyed
from acefl.core.errors import AceflError, require
from acefl.core.files import atomic_directory
from acefl.core.server import Server
from acefl.core.types import State, Step, Vector
from acefl.runs.observers import Observer, RunInProgress
from acefl.tasks.hub import needed

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

log = logging.getLogger("acefl")


def trained_arrays(model: nn.Module) -> ArrayRecord:
    """The parameters that are trained, by name: what a server starts from, and what clients send.

    Args:
        model: Any module, such as a PEFT model.
    """
    from flwr.app import ArrayRecord

    trained = {name: parameter.detach().cpu() for name, parameter in _trained(model)}
    require(bool(trained), "the model has no trainable parameters; allowed: at least one")
    return ArrayRecord(trained)


def load_arrays(model: nn.Module, arrays: ArrayRecord) -> None:
    """Put a server's arrays into the model's trainable parameters, all others staying as they are.

    Args:
        model: The model that `trained_arrays` was called with, or one like it.
        arrays: Of a message, or of a `Result`.
    """
    given, own = arrays.to_torch_state_dict(), dict(_trained(model))
    odd = sorted(given.keys() ^ own.keys())
    require(not odd, f"arrays and trainable parameters differ: {', '.join(odd[:3])}; allowed: those of one model")
    with torch.no_grad():
        for name, values in given.items():
            parameter, shape = own[name], tuple(values.shape)
            require(
                shape == tuple(parameter.shape), f"array {name} has shape {shape}; allowed: {tuple(parameter.shape)}"
            )
            parameter.copy_(values)


def client_update(trainer: Any, message: Message) -> Message:
    """Train from the model in a message, and reply with the trained parameters, the loss and the number of samples.

    The reply is made an update by the mod `acefl.flower.send_update`. One client alone, with a server's lr of 1, gets
    what `trainer.train()` gives by itself.

    Args:
        trainer: A fresh `Trainer`; how long a visit is, its arguments say (`max_steps`, `num_train_epochs`).
        message: The train message.
    """
    from flwr.app import Message, MetricRecord, RecordDict

    load_arrays(trainer.model, _arrays(message))
    loss = float(trainer.train().training_loss)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainer.train_dataset)})
    content = RecordDict({"arrays": trained_arrays(trainer.model), "metrics": metrics})
    return Message(content, reply_to=message)


def client_evaluation(trainer: Any, message: Message) -> Message:
    """Evaluate the model in a message, and reply with what `trainer.evaluate()` finds and the number of samples.

    `eval_loss` is the loss of a client; metrics of `compute_metrics` are sent along.

    Args:
        trainer: A `Trainer` with an `eval_dataset`.
        message: The evaluate message.
    """
    from flwr.app import Message, MetricRecord, RecordDict

    load_arrays(trainer.model, _arrays(message))
    found = {name: float(value) for name, value in trainer.evaluate().items() if isinstance(value, int | float)}
    metrics = MetricRecord({**found, "num-examples": len(trainer.eval_dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def task_seed(message: Message, seed: int = 0) -> int:
    """A seed for `TrainingArguments(seed=...)` that is another one for every task.

    A `Trainer` shuffles its data by its seed. With one and the same, a client that takes ten steps per message would
    train on the same ten minibatches each time.

    Args:
        message: The train message.
        seed: Of the run.
    """
    from acefl.fleets.flower.records import Order

    return keyed.key(seed, Order.read(message.content).task) % 2**31


class SaveAdapters(Observer):
    """Writes versions of an adapter while the server trains: folders that `PeftModel.from_pretrained` loads.

    Folders are called `peft_<version>`. Each is there complete or not at all, and holds the server's numbers bit for
    bit. The model itself is not touched. `save` writes the last version when the run is over. In simulations too:
    `SaveAdapters(task.module(task.initial()), ...)`.

    Args:
        model: The PEFT model whose trainable parameters travel, or one like it.
        folder: Where the folders go.
        every: Steps of the server from one to the next.
    """

    def __init__(self, model: nn.Module, folder: str | os.PathLike[str], every: int = 100) -> None:
        peft = needed("peft", "SaveAdapters", "lm")
        require(every >= 1, f"every is {every}; allowed: at least 1")
        require(isinstance(model, peft.PeftModel), f"model is {type(model).__name__}; allowed: a PEFT model")
        saved = {values.data_ptr() for values in peft.get_peft_model_state_dict(model).values()}
        lost = [name for name, parameter in _trained(model) if parameter.data_ptr() not in saved]
        require(not lost, f"{', '.join(lost[:3])} would not be saved; allowed: trainable parameters of the adapter")
        self._model, self._folder, self._every = model, Path(folder), every
        self.version = 0

    def started(self, run: RunInProgress) -> None:
        dim, own = run.server.model.numel(), sum(parameter.numel() for _, parameter in _trained(self._model))
        require(dim == own, f"the server trains {dim:,} numbers, the adapter has {own:,}; allowed: those of one model")

    def stepped(self, step: Step, server: Server) -> None:
        due = step.version // self._every > self.version // self._every
        self.version = step.version
        if due:
            try:
                self.save(server.model)
            except (OSError, AceflError, SafetensorError) as error:  # a full disk is no reason to stop training
                log.warning("cannot save version %d of the adapter: %s", step.version, error)

    def save(self, model: Vector | ArrayRecord) -> Path:
        """Write the version that the run is at, and return its folder. A folder of the same version is replaced.

        Args:
            model: The server's numbers: a flat vector, or the arrays of a `Result`.
        """
        folder = self._folder / f"peft_{self.version}"
        given = {**self._model.state_dict(), **self._named(model)}
        with atomic_directory(folder, _check_adapter) as beside:
            self._model.save_pretrained(beside, state_dict=given, save_embedding_layers=False)  # type: ignore[operator]
        log.info("saved %s", folder)
        return folder

    def _named(self, model: Vector | ArrayRecord) -> dict[str, torch.Tensor]:
        if not isinstance(model, torch.Tensor):
            return dict(model.to_torch_state_dict())
        named, own = {}, dict(_trained(self._model))
        parts = model.detach().cpu().split([parameter.numel() for parameter in own.values()])
        for (name, parameter), part in zip(own.items(), parts, strict=True):
            named[name] = part.view_as(parameter).to(parameter.dtype)
        return named

    def state_dict(self) -> State:
        return {"version": self.version}

    def load_state_dict(self, state: State) -> None:
        self.version = int(state["version"])


def _check_adapter(folder: Path) -> None:
    ours = not folder.exists() or (folder / "adapter_config.json").exists()
    require(ours, f"{folder} exists and is no adapter; allowed: another folder, or one that can be replaced")


def _arrays(message: Message) -> ArrayRecord:
    from flwr.app import ArrayRecord

    [arrays] = [record for record in message.content.values() if isinstance(record, ArrayRecord)]
    return arrays


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


__all__ = [
    "SaveAdapters",
    "client_evaluation",
    "client_update",
    "load_arrays",
    "task_seed",
    "trained_arrays",
]
