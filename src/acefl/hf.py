"""Hugging Face on Flower: a client that trains with transformers' `Trainer` (or trl's `SFTTrainer`) in a line.

    app = ClientApp(mods=[acefl.flower.send_update])

    @app.train()
    def train(message, context):
        return client_update(my_trainer(context), message)

The trainable parameters alone travel, an adapter of PEFT for example. The server starts from
`trained_arrays(model)`; `load_arrays(model, result.arrays)` puts what came out back, for `model.save_pretrained`.
The replies are those of any Flower app, so they serve Flower's own strategies as well. Needs `acefl[flower,lm]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from acefl.core.errors import require

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message


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
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    [arrays] = [record for record in message.content.values() if isinstance(record, ArrayRecord)]
    load_arrays(trainer.model, arrays)
    loss = float(trainer.train().training_loss)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainer.train_dataset)})
    content = RecordDict({"arrays": trained_arrays(trainer.model), "metrics": metrics})
    return Message(content, reply_to=message)


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


__all__ = ["client_update", "load_arrays", "trained_arrays"]
