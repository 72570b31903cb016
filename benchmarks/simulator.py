"""How much of the bare gradient loop's speed the simulator keeps, on the digits MLP (64-64-10), 100 clients.

The bare loop computes the same gradients, one after another, and does nothing else: no events, no stale models, no
server. Evaluation is left out on both sides. One thread.
"""

from __future__ import annotations

import torch

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, Scenario, Server, Stop, tasks
from acefl.core.loop import run
from acefl.core.rule import Method
from acefl.fleets.simulated import simulated_fleet
from benchmarks.common import interleaved, median_ratio, report

ARRIVALS = 2_000
SCENARIO = Scenario(spread=30.0)


def simulator(task: tasks.TorchTask, rule: Method) -> None:
    model = task.initial()
    server = Server(model, rule.build(task.clients, model, task.samples), 0.05, task.clients)
    for _ in run(server, simulated_fleet(task, SCENARIO, seed=0), Stop(arrivals=ARRIVALS)):
        pass


def bare(task: tasks.TorchTask) -> None:
    """Plain PyTorch as anybody would write it: draw a minibatch, forward, backward, flatten."""
    module, loss = task.module(task.initial()).train(), task._model.loss
    parameters = list(module.parameters())
    for arrival in range(ARRIVALS):
        client = arrival % task.clients
        draw = torch.randint(task.samples[client], (task._batch,)) + int(task._data.offsets[client])
        gradients = torch.autograd.grad(loss(module(task._data.inputs[draw]), task._data.targets[draw]), parameters)
        torch.cat([g.reshape(-1) for g in gradients])


def main() -> None:
    torch.set_num_threads(1)
    task = tasks.digits(clients=100, model="mlp", batch=50)
    rules: dict[str, Method] = {
        "ASGD": ASGD(),
        "FedBuff": FedBuff(),
        "CA2FL": CA2FL(),
        "ACE": ACE(),
        "ACED": ACED(tau=300),
        "ACE int8": ACE(table="int8"),
    }
    seconds = interleaved(
        {"bare": lambda: bare(task), **{name: lambda r=rule: simulator(task, r) for name, rule in rules.items()}}
    )
    rows = [
        {
            "what": name,
            "arrivals/s": ARRIVALS / min(times),
            "of the bare loop": median_ratio(seconds["bare"], times),
        }
        for name, times in seconds.items()
    ]
    worst = min(row["of the bare loop"] for row in rows[1:6])
    report(
        "simulator",
        __doc__ or "",
        rows,
        [
            {"what": "slowest method, of the bare loop", "measured": worst, "asked": ">= 0.7", "met": worst >= 0.7},
            {"what": "the same, with batching (issue 5)", "measured": worst, "asked": ">= 1.0", "met": worst >= 1.0},
        ],
    )


if __name__ == "__main__":
    main()
