"""Your own model and data: twelve hospitals of very different sizes and speeds, and what the slow ones get.

Real measurements of tumours (569 of them, 30 numbers each, scikit-learn's breast cancer data, no download), split over
hospitals by diagnosis. A hospital's work is five local steps; it sends where it started minus where it ended.

    python examples/own_task.py [DIRECTORY]    with a directory: also write a report there
"""

from __future__ import annotations

import functools
import sys

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

from acefl import ACE, FedBuff, Scenario, Stop, compare, simulate, tasks

HOSPITALS = 12
SCENARIO = Scenario(spread=20.0, law="lognormal")  # the slowest takes 20 times as long as the fastest
STOP = Stop(arrivals=300)
METHODS = (ACE(), FedBuff(buffer=4))


def hospitals(seed: int = 0) -> tasks.TorchTask:
    """The task for a seed: another split of the data over hospitals, another first model."""
    data = load_breast_cancer()
    inputs = (data.data - data.data.mean(0)) / data.data.std(0)
    x, x_test, y, y_test = train_test_split(
        torch.tensor(inputs, dtype=torch.float32), torch.tensor(data.target), test_size=0.3, random_state=seed
    )
    rows = tasks.partition(y, HOSPITALS, alpha=0.3, seed=seed)
    torch.manual_seed(seed)
    return tasks.TorchTask(
        nn.Sequential(nn.Linear(30, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2)),
        nn.CrossEntropyLoss(),
        [(x[own], y[own]) for own in rows],
        test=(x_test, y_test),
        batch=16,
        local=tasks.LocalSteps(5, functools.partial(torch.optim.SGD, lr=0.05)),
    )


def main() -> None:
    for rule in METHODS:
        run = simulate(hospitals(), rule, lr=0.5, scenario=SCENARIO, stop=STOP, evaluations=5)
        final = {name: round(run.final[name], 2) for name in ("accuracy", "heldout_slow_accuracy", "client_loss")}
        print(type(rule).__name__, final)
    if len(sys.argv) > 1:
        out = compare(hospitals, METHODS, scenario=SCENARIO, stop=STOP, seeds=[0, 1], out=sys.argv[1])
        print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    main()
