"""Ten thousand clients on one CPU core: softmax on digits, 100,000 arrivals, memory and time per arrival.

Digits has 1,257 training images, so clients beyond that share them: every client gets its own random 20. What is
measured is the simulator, not the learning. Each size runs in a process of its own, so that peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from benchmarks.common import report

FEW, MANY = 100, 10_000


def measure(clients: int, arrivals: int) -> dict[str, float]:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    from acefl import ACE, Scenario, Stop, simulate
    from acefl.tasks import TorchTask

    torch.set_num_threads(1)
    data = load_digits()
    x, y = torch.tensor(data.data / 16.0, dtype=torch.float32), torch.tensor(data.target)
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(len(x), (20,), generator=draw) for _ in range(clients)]
    task = TorchTask(nn.Linear(64, 10), nn.CrossEntropyLoss(), [(x[own], y[own]) for own in rows], ridge=1e-3)
    scenario = Scenario(spread=30.0)
    simulate(task, ACE(), lr=1e-3, scenario=scenario, stop=Stop(arrivals=200), evaluations=1)
    began = time.perf_counter()
    run = simulate(task, ACE(), lr=1e-3, scenario=scenario, stop=Stop(arrivals=arrivals), evaluations=1)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"us per arrival": seconds / run.arrivals * 1e6, "peak GiB": peak}


def main() -> None:
    rows = []
    for clients, arrivals in ((FEW, 20_000), (MANY, 100_000), (FEW, 20_000)):
        command = [sys.executable, "-m", "benchmarks.many_clients", str(clients), str(arrivals)]
        measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append({"clients": clients, "arrivals": arrivals, **measured})
    ratio = rows[1]["us per arrival"] / min(rows[0]["us per arrival"], rows[2]["us per arrival"])
    peak = rows[1]["peak GiB"]
    targets = [
        {"what": f"time per arrival, n = {MANY} over {FEW}", "measured": ratio, "asked": "<= 1.5", "met": ratio <= 1.5},
        {"what": f"peak memory at n = {MANY}, GB", "measured": peak * 1.074, "asked": "< 2", "met": peak * 1.074 < 2},
    ]
    report("many_clients", __doc__ or "", rows, targets)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
