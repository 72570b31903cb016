"""Flower's simulation engine (Ray), synchronous federated averaging: Flower has no asynchronous strategy.

All 100 clients in every round, one local step each, one client at a time (one CPU for Ray), data read once per worker
process, evaluation on the server every second round, none by clients. The first round, in which Ray starts its worker,
is not timed. CPU seconds are those of the server's process alone: the work is done in another.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from work import BATCH, EVERY, LR, Answer, Digits, Mlp, drive, evaluate, read


class Counting(FedAvg):
    """Federated averaging that does not go on without a client: a failed one is no update."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


def client_app(path: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        inputs, targets = read(path).clients[int(context.node_config["partition-id"])]
        model = Mlp()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        draw = torch.randint(len(targets), (BATCH,))
        nn.functional.cross_entropy(model(inputs[draw]), targets[draw]).backward()
        torch.optim.SGD(model.parameters(), lr=LR).step()
        answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
        return Message(content=RecordDict(answer), reply_to=message)

    return app


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients = len(digits.clients)
    rounds = arrivals // clients
    ends: list[tuple[float, float]] = []
    reached = 0.0

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        nonlocal reached
        if server_round % (EVERY // clients) == 0:
            model = Mlp()
            model.load_state_dict(arrays.to_torch_state_dict())
            reached = evaluate(model, digits)
        ends.append((time.perf_counter(), time.process_time()))
        return MetricRecord({"accuracy": reached})

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Counting(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
        strategy.start(grid, ArrayRecord(Mlp().state_dict()), num_rounds=rounds + 1, evaluate_fn=judge)

    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server, client_app(digits.path), num_supernodes=clients, backend_config=backend)
    (wall, cpu), (wall_end, cpu_end) = ends[1], ends[-1]  # ends[0] is the model before the first round
    return (len(ends) - 2) * clients, (wall_end - wall, cpu_end - cpu), reached


if __name__ == "__main__":
    drive(run, warm_up=0)
