"""The simulator on a GPU: what an arrival costs through `simulate`, as users call it, and by the eager loop.

Random data of the real shapes (gradients cost the same), 100 clients, minibatches of 50; two evaluations are in the
time and compiling is not. `event`: every client on a version of its own, speeds 30 apart. `one version`: clock tick
with a mean delay of 5, so that some twenty clients start from each model. `--warm` compiles all that is needed in
processes beside each other, into torch's cache, and times nothing. Cases get ready beside each other too, and are timed
one after another. The record keeps the rows of other cases.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Lock
from typing import Any

import torch
from torch import nn

from acefl import ACE, ASGD, Scenario, Stop, simulate
from acefl.core.rule import Method
from acefl.tasks.cifar import normaliser
from acefl.tasks.compute import Replayed
from acefl.tasks.torch_task import TorchTask
from acefl.tasks.vision import resnet18, small_cnn
from benchmarks.common import RESULTS, report

CLIENTS, EAGER, TURNS = 100, 100, 3
EVENT, ONE_VERSION = Scenario(spread=30.0), Scenario(clock="tick", delay=5.0)
LARGE = {"bf16": True, "channels_last": True}
_all_ready: Barrier
_alone: Lock


@dataclass(frozen=True)
class Case:
    make: Callable[[], TorchTask]
    arrivals: int
    most_ms: dict[str, float]  # what an arrival may take, by how clients start
    times_eager: float = 0.0  # at least, for ASGD and ACE
    sizes: tuple[int, ...] = ()  # that are compiled: of clients on versions of their own
    shared: tuple[int, ...] = ()  # and on one version


def images(model: nn.Module, batch: int = 50, **options: Any) -> TorchTask:
    data = [
        (torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (60,))) for _ in range(CLIENTS)
    ]
    return TorchTask(
        model,
        nn.CrossEntropyLoss(),
        data,
        batch=batch,
        device="cuda",
        prepare=normaliser("cuda"),
        **options,
    )


def digits_shaped() -> TorchTask:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = [(torch.rand(13, 64), torch.randint(10, (13,))) for _ in range(CLIENTS)]
    return TorchTask(model, nn.CrossEntropyLoss(), data, batch=50, device="cuda", compile=False)


CASES = {
    "digits MLP": Case(digits_shaped, 5_000, {}, times_eager=20.0),
    "CNN 0.5M": Case(
        lambda: images(small_cnn(), compile=True),
        2_000,
        {"event": 0.33, "one version": 0.2},
        sizes=(4, 8),
        shared=(10, 20),
    ),
    "ResNet-18 GroupNorm": Case(
        lambda: images(resnet18(), compile=True, **LARGE),
        500,
        {"event": 1.7, "one version": 1.1},
        sizes=(1,),
        shared=(5, 10),
    ),
    "ResNet-18 BatchNorm": Case(
        lambda: images(resnet18(norm="batch"), compile=True, **LARGE),
        500,
        {"event": 1.2, "one version": 0.9},
        sizes=(1,),
        shared=(5, 10),
    ),
}


def run(task: TorchTask, method: Method, scenario: Scenario, arrivals: int) -> None:
    simulate(task, method, lr=1e-4, scenario=scenario, stop=Stop(arrivals=arrivals), evaluations=1)


def eager(task: TorchTask, arrivals: int) -> None:
    """Plain PyTorch: draw a minibatch, forward, backward, flatten; one client after another."""
    parameters = task._net.parameters
    offsets = task._data.offsets.tolist()
    for arrival in range(arrivals):
        client = arrival % CLIENTS
        draw = torch.randint(task.samples[client], (task._batch,), device="cuda") + offsets[client]
        loss = task._model.loss(
            task._model.output(task._data.inputs[draw], task._data.targets[draw]), task._data.targets[draw]
        )
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


def milliseconds(job: Callable[[], None], arrivals: int) -> float:
    """Of one arrival, the median of some turns."""
    times = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        job()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times) / arrivals


def measured(name: str) -> dict[str, Any]:
    """A case's row: an untimed turn of everything, then, when all cases are as far, the timed ones."""
    torch.manual_seed(0)
    case, began = CASES[name], time.perf_counter()
    task = case.make()
    ran = task.for_run(0)
    jobs = {"eager": (lambda: eager(task, EAGER), EAGER)}
    for how, scenario in (("event", EVENT), ("one version", ONE_VERSION)):
        for method in (ASGD(), ACE(home="device")) if how == "event" else (ACE(home="device"),):
            job = lambda s=scenario, m=method: run(task, m, s, case.arrivals)  # noqa: E731
            jobs[f"{type(method).__name__} {how}"] = (job, case.arrivals)
    for job, _ in jobs.values():
        job()
    print(f"{name}: ready after {time.perf_counter() - began:.0f} s", flush=True)
    _all_ready.wait()
    with _alone:
        took = {f"{what} ms": milliseconds(job, arrivals) for what, (job, arrivals) in jobs.items()}
    return {"case": name, "strategy": ran.compute.name, "at once": ran.batch_limit, "numbers": len(task._net), **took}


def _share(all_ready: Barrier, alone: Lock) -> None:
    global _all_ready, _alone
    _all_ready, _alone = all_ready, alone


def compiled(name: str, shared: bool, clients: int) -> None:
    """What so many clients' gradients compile to, for torch's cache."""
    began = time.perf_counter()
    task = CASES[name].make()
    assert isinstance(task.compute, Replayed)
    strategy = task._strategies.shared_compiled if shared else task.compute.compiled()
    assert strategy is not None
    some = list(range(clients))
    strategy(task.initial().repeat(1 if shared else clients, 1), some, some)
    took = time.perf_counter() - began
    print(f"{name}: {clients} on {'one version' if shared else 'their own'} compiled after {took:.0f} s", flush=True)


def targets(row: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    found = []
    for how, most in case.most_ms.items():
        took = row[f"ACE {how} ms"]
        found.append(
            {"what": f"{row['case']}, {how}: ms", "measured": took, "asked": f"<= {most:g}", "met": took <= most}
        )
    for method in ("ASGD", "ACE") if case.times_eager else ():
        times, least = row["eager ms"] / row[f"{method} event ms"], case.times_eager
        what = f"{row['case']}, {method}: times eager"
        found.append({"what": what, "measured": times, "asked": f">= {least:g}", "met": times >= least})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    if given.warm:
        jobs = [(name, False, size) for name in given.case for size in CASES[name].sizes]
        jobs += [(name, True, size) for name in given.case for size in CASES[name].shared]
        with context.Pool(len(jobs)) as pool:
            pool.starmap(compiled, jobs, chunksize=1)
        return
    with context.Pool(len(given.case), _share, (context.Barrier(len(given.case)), context.Lock())) as pool:
        rows = pool.map(measured, given.case, chunksize=1)
    path = RESULTS / "gpu_simulator.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in known if row["case"] in CASES and row["case"] not in given.case] + rows
    met = [target for row in rows for target in targets(row, CASES[row["case"]])]
    report("gpu_simulator", f"An arrival on {torch.cuda.get_device_name()}, load {os.getloadavg()[0]:.1f}", rows, met)


if __name__ == "__main__":
    main()
