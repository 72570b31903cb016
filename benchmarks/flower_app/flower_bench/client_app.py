"""Answers with a gradient of the right length, after as long as it is told to take."""

from __future__ import annotations

import time

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from acefl.flower import answer

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    began = time.time()
    time.sleep(float(context.run_config["work-seconds"]) * float(context.node_config.get("slowness", 1)))
    model = torch.from_numpy(message.content["arrays"]["w"].numpy())
    return answer(message, context, model * 0.1, {"began_work": began, "ended_work": time.time()})
