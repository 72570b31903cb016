"""Answers with a gradient; one answer in four is spoiled or late, by its task's number."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from acefl.flower import answer
from flower_chaos import task

app = ClientApp()


def _without(name: str) -> Callable[[RecordDict], None]:
    return lambda content: content.pop(name) and None


def _update(array: Array) -> Callable[[RecordDict], None]:
    return lambda content: content.__setitem__("update", ArrayRecord({"update": array}))


def _order(**changed: object) -> Callable[[RecordDict], None]:
    return lambda content: content.__setitem__("acefl", ConfigRecord({**content["acefl"], **changed}))


SPOILED: list[Callable[[RecordDict], None]] = [
    _without("update"),
    _without("acefl"),
    lambda content: content.clear(),
    lambda content: content.__setitem__("update", ConfigRecord({"update": "text"})),
    _update(Array(np.array(1.0))),  # no dimensions
    _update(Array("fp32", (task.DIM,), "acefl", b"text, not numbers")),
    _update(Array("fp32", (10**12,), "acefl", b"\0" * 4)),  # a huge shape, declared only
    _update(Array("int32", (task.DIM,), "numpy.ndarray", b"not what numpy writes")),
    _update(Array("float64", (task.DIM,), "acefl", np.ones(task.DIM).tobytes())),
    _update(Array("fp32", (task.DIM,), "acefl", np.full(task.DIM, np.nan, np.float32).tobytes())),
    _order(run="another"),
    _order(task=10**9),
    _order(base="text"),
    lambda content: time.sleep(6.0),  # late, but good
]


@app.train()
def train(message: Message, context: Context) -> Message:
    model = torch.from_numpy(message.content["arrays"]["w"].numpy())
    number = int(message.content["acefl"]["task"])
    time.sleep(0.2)
    reply = answer(message, context, task.gradient(int(context.node_config["partition-id"]), model))
    if number % 4 == 3:
        SPOILED[number // 4 % len(SPOILED)](reply.content)
    return reply
