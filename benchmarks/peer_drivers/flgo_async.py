"""FLGo's FedAsync and FedBuff under its virtual clock, all clients at work.

The task is made from Python objects (`flgo_task.py`), so data are in memory; one local step; no local validation data
(`train_holdout` 0); console log, log file and progress bars off. Latencies are such that about one client arrives per
unit of FLGo's clock, because it walks through empty units one by one. Clients train when they are selected, so what is
in flight at the end counts as arrived.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flgo
import flgo.algorithm.fedasync
import flgo.algorithm.fedbuff
from flgo.simulator.base import BasicSimulator
from work import BATCH, BUFFER, EVERY, LR, SPREAD, Answer, Digits, Stopwatch, drive, evaluate

UNIT = 28  # of FLGo's clock per task of the fastest client: a hundred, the slowest 30 times slower, arrive one per unit
ALGORITHMS = {"FedAsync": flgo.algorithm.fedasync, "FedBuff": flgo.algorithm.fedbuff}


class Spread(BasicSimulator):
    """Client i takes SPREAD ** (i / (n - 1)) times as long as client 0."""

    def initialize(self, *_: Any, **__: Any) -> None:
        last = len(self.all_clients) - 1
        latencies = [round(UNIT * SPREAD ** (i / last)) for i in range(last + 1)]
        self.set_variable(self.all_clients, "latency", latencies)


def counting(algorithm: Any) -> SimpleNamespace:
    """The same algorithm, with a count of what arrived."""

    class Server(algorithm.Server):  # type: ignore[misc,name-defined]
        arrived = 0

        def package_handler(self, received: dict[str, list[Any]]) -> bool:
            self.arrived += len(received["__cid"])
            return bool(super().package_handler(received))

    return SimpleNamespace(Server=Server, Client=algorithm.Client, __name__=algorithm.__name__)


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    os.environ["PEERS_DATA"] = digits.path
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # FLGo imports a task by its path from here
        sys.path.insert(0, scratch)
        name = f"digits{arrivals}"
        task = flgo.gen_direct_task_from_file(name, str(Path(__file__).with_name("flgo_task.py")), ".")
        server = flgo.init(
            task,
            counting(ALGORITHMS[method]),
            {
                "proportion": 1.0,
                "num_steps": 1,
                "batch_size": BATCH,
                "learning_rate": LR,
                "train_holdout": 0.0,
                "eval_interval": EVERY if method == "FedAsync" else EVERY // BUFFER,
                "no_log_console": True,
                "no_tqdm": True,
                "log_file": False,
                "torch_num_threads": 1,
            },
            Simulator=Spread,
        )
        server.register_exit_condition(lambda s: s.arrived >= arrivals)
        watch = Stopwatch()
        server.run()
        seconds = watch.stop()
        os.chdir("/")
    return server.arrived + len(server.concurrent_clients), seconds, evaluate(server.model, digits)


if __name__ == "__main__":
    drive(run)
