"""A ClientApp as for any of Flower's strategies; `mods=[send_update]` is all that asynchronous training asks for."""

from __future__ import annotations

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from acefl.flower import send_update
from flower_digits import task

app = ClientApp(mods=[send_update])


@app.train()
def train(message: Message, context: Context) -> Message:
    model, data = _load(message, context)
    config = context.run_config
    time.sleep(float(config["work-seconds"]) * float(context.node_config.get("slowness", 1)))
    loss = task.train(model, data, int(config["local-steps"]), int(config["batch"]), float(config["local-lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, data = _load(message, context)
    metrics = MetricRecord({**task.test(model, data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _load(message: Message, context: Context) -> tuple[nn.Module, task.Data]:
    model = task.new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    return model, task.load(int(node["partition-id"]), int(node["num-partitions"]))
