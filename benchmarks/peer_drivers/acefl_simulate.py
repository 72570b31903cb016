"""acefl's `simulate()`, called as a user calls it: building the run and evaluating it are inside the clock.

Building the task is not, as building a peer's clients is not: it is built once and warmed up, and a run on a task that
was never run before takes about a second more, for tracing its gradient.
"""

from __future__ import annotations

from functools import cache

from torch import nn
from work import BATCH, BUFFER, EVERY, LR, SPREAD, Answer, Digits, Mlp, Stopwatch, drive, read

from acefl import ACE, ASGD, FedBuff, Scenario, Stop, simulate
from acefl.tasks import TorchTask

RULES = {"ACE": (ACE(), 0.02), "ASGD": (ASGD(), LR), "FedBuff": (FedBuff(buffer=BUFFER), 0.5)}


@cache
def build(path: str) -> TorchTask:
    digits = read(path)
    return TorchTask(Mlp(), nn.CrossEntropyLoss(), digits.clients, test=digits.test, batch=BATCH)


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    rule, lr = RULES[method]
    task = build(digits.path)
    watch = Stopwatch()
    done = simulate(
        task,
        rule,
        lr=lr,
        scenario=Scenario(spread=SPREAD),
        stop=Stop(arrivals=arrivals),
        evaluations=max(1, arrivals // EVERY),
    )
    return done.arrivals, watch.stop(), done.final["accuracy"]


if __name__ == "__main__":
    drive(run, warm_up=2_000)
