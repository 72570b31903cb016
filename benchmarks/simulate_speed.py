"""`simulate` as users call it (events recorded, one evaluation) against the bare gradient loop, one thread.

`python -m benchmarks.simulate_speed [ARRIVALS]` (default: 200,000 for the long runs)

The bare loop draws a minibatch, computes its gradient and flattens it: no events, no stale models, no server. Every
run is in a process of its own, with the bare loop timed before and after it. Long runs compile their gradients, and
the time for that counts: in the first row with an empty compiler cache, in the others with what the first one left
there. Runs of 2,000 arrivals and the large model are not compiled; they are timed the second time in their process.
"by CPU time" is the same ratio of processor seconds, the compiler's included: what is left to compare by when others
use the machine too. The record says how loaded it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method
from benchmarks.common import report

CLIENTS, BATCH = 100, 20
RULES: dict[str, Method] = {
    "ASGD": ASGD(),
    "FedBuff": FedBuff(),
    "CA2FL": CA2FL(),
    "ACE": ACE(),
    "ACED": ACED(tau=300),
    "ACE int8": ACE(table="int8"),
}
ASKED = {"ASGD": 6.0, "FedBuff": 6.0, "CA2FL": 5.0, "ACE": 5.0, "ACED": 5.0, "ACE int8": 3.0}
SHORT, LARGE = 2_000, 400  # arrivals
BARE = {"mlp": 3_000, "softmax": 3_000, "large": 100}  # gradients of the bare loop, before and after


def task_of(model: str) -> tasks.TorchTask:
    """`mlp` and `softmax` are those of `tasks.digits`; `large` is an MLP of 1.2 million parameters."""
    if model != "large":
        return tasks.digits(clients=CLIENTS, model=model, batch=BATCH)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1064), nn.ReLU(), nn.Linear(1064, 10))
    data = [(torch.rand(20, 64), torch.randint(10, (20,))) for _ in range(CLIENTS)]
    return tasks.TorchTask(module, nn.CrossEntropyLoss(), data, batch=BATCH)


def clocks() -> torch.Tensor:
    """Seconds on the wall, and of the processor by this process and those it has started."""
    return torch.tensor([time.perf_counter(), sum(os.times()[:4])], dtype=torch.float64)


def bare(task: tasks.TorchTask, gradients: int) -> torch.Tensor:
    """Seconds per gradient, by both clocks, of plain PyTorch as anybody would write it."""
    module, loss = task.module(task.initial()).train(), nn.CrossEntropyLoss()
    parameters = list(module.parameters())
    began = clocks()
    for number in range(gradients):
        client = number % task.clients
        rows = torch.randint(task.samples[client], (BATCH,)) + int(task._data.offsets[client])
        found = torch.autograd.grad(loss(module(task._data.inputs[rows]), task._data.targets[rows]), parameters)
        torch.cat([part.reshape(-1) for part in found])
    return (clocks() - began) / gradients


def timed(model: str, method: str, arrivals: int) -> dict[str, float | str]:
    """One run, between two bare loops."""
    torch.set_num_threads(1)
    task = task_of(model)
    bare(task, 20)
    if arrivals <= SHORT:  # what a process does once, tracing the model, is not what a short run is timed for
        simulate(task, RULES[method], lr=0.05, scenario=Scenario(spread=30.0), stop=Stop(arrivals=arrivals))
    before = bare(task, BARE[model])
    began = clocks()
    run = simulate(
        task, RULES[method], lr=0.05, scenario=Scenario(spread=30.0), stop=Stop(arrivals=arrivals), evaluations=1
    )
    seconds = clocks() - began
    alone = (before + bare(task, BARE[model])) / 2
    return {
        "gradients": run.config["compute"]["strategy"],
        "us per arrival": 1e6 * float(seconds[0]) / arrivals,
        "us of the bare loop": 1e6 * float(alone[0]),
        "of the bare loop": float((alone * arrivals / seconds)[0]),
        "by CPU time": float((alone * arrivals / seconds)[1]),
    }


def in_a_process(model: str, method: str, arrivals: int, cache: str) -> dict[str, float | str]:
    command = [sys.executable, "-m", "benchmarks.simulate_speed", "--child", model, method, str(arrivals)]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arrivals: int = 200_000) -> None:
    rows: list[dict[str, Any]] = []
    targets: list[dict[str, Any]] = []

    def row(what: str, asked: float | None, model: str, method: str, count: int, cache: str) -> None:
        found = in_a_process(model, method, count, cache)
        rows.append({"what": what, "model": model, "method": method, "arrivals": count, **found})
        print(f"  {what}: {found['of the bare loop']:.2f} ({found['by CPU time']:.2f} by CPU time)", file=sys.stderr)
        if asked is not None:
            ratio = float(found["of the bare loop"])
            targets.append({"what": what, "measured": ratio, "asked": f">= {asked:g}", "met": ratio >= asked})

    load = os.getloadavg()[0]  # of this machine, by everybody on it
    with tempfile.TemporaryDirectory() as cache:
        for model in ("mlp", "softmax"):
            row(f"ASGD, digits {model}, long, nothing compiled before", None, model, "ASGD", arrivals, cache)
            for method in RULES:
                row(f"{method}, digits {model}, long", ASKED[method], model, method, arrivals, cache)
            for method in RULES:
                asked = 1.5 if "int8" not in method else None
                row(f"{method}, digits {model}, short", asked, model, method, SHORT, cache)
        for method in RULES:
            row(f"{method}, MLP of 1.2M parameters", 1.0, "large", method, LARGE, cache)
    rows.append({"what": f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after"})
    report("simulate_speed", __doc__ or "", rows, targets)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(timed(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main(*map(int, sys.argv[1:2]))
