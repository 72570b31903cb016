"""Replies with arrays a little smaller than those it got, and notes when it had them."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from acefl.flower import send_update


def note(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod: adds a line with the task and the time at which its answer was ready."""
    task = message.content["acefl"]["task"]
    reply = call_next(message, context)
    with (Path(str(context.run_config["notes"])) / "made").open("a") as notes:
        notes.write(f"{task} {time.time()}\n")
    return reply


app = ClientApp(mods=[note, send_update])


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content.array_records["arrays"]
    trained = ArrayRecord({name: Array(0.99 * array.numpy()) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)
