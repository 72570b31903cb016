"""What every driver shares: the same data and model, one way to be called, one line of JSON as the answer.

Runs in each peer's own environment, so it needs nothing but torch and numpy, and drivers are scripts, not modules.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BATCH = 50
EVERY = 200  # arrivals from one evaluation to the next
SPREAD = 30.0  # the slowest client's task takes so many times the fastest one's
BUFFER = 10
LR = 0.1
WARM_UP = 200  # arrivals before the timed ones


class Stopwatch:
    """Seconds on the wall and of this process: on a quiet machine one thread's are the same."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


Answer = tuple[int, tuple[float, float], float]  # arrivals, what the stopwatch says, accuracy


@dataclass
class Digits:
    """Every client's rows, at least a minibatch each, and a common test set."""

    path: str
    clients: list[tuple[torch.Tensor, torch.Tensor]]
    test: tuple[torch.Tensor, torch.Tensor]

    def slowness(self, client: int) -> float:
        return float(SPREAD ** (client / (len(self.clients) - 1)))


class Mlp(nn.Sequential):
    """64-64-10. Seeds nothing: some peers make a new model for every sum of two."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(truth: np.ndarray, scores: np.ndarray) -> float:
    return float((scores.argmax(1) == truth).mean())


@torch.no_grad()
def evaluate(model: nn.Module, digits: Digits) -> float:
    inputs, targets = digits.test
    scores = model(inputs)
    nn.functional.cross_entropy(scores, targets).item()
    return accuracy(targets.numpy(), scores.numpy())


@functools.cache
def read(path: str) -> Digits:
    with np.load(path) as stored:
        parts = np.cumsum(stored["counts"])[:-1]
        inputs, targets = np.split(stored["train_x"], parts), np.split(stored["train_y"], parts)
        clients = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(inputs, targets, strict=True)]
        return Digits(path, clients, (torch.tensor(stored["test_x"]), torch.tensor(stored["test_y"])))


def drive(run: Callable[[Digits, str, int], Answer], warm_up: int = WARM_UP) -> None:
    """Call `run(digits, method, arrivals)`, first for a warm-up; the last line of output says what came of it."""
    options = argparse.ArgumentParser()
    options.add_argument("data")
    options.add_argument("method")
    options.add_argument("arrivals", type=int)
    given = options.parse_args()
    sys.argv[1:] = []  # some peers read the command line too
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = read(given.data)
    if warm_up:
        run(digits, given.method, min(warm_up, given.arrivals))
    arrivals, (seconds, cpu), reached = run(digits, given.method, given.arrivals)
    answer = {"arrivals": arrivals, "seconds": seconds, "cpu_seconds": cpu, "accuracy": reached}
    print("\n" + json.dumps(answer), flush=True)
