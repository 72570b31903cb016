"""acefl's `simulate()`, called as a user calls it: building the run and evaluating it are inside the clock."""

from __future__ import annotations

from torch import nn
from work import BATCH, BUFFER, EVERY, LR, SPREAD, Answer, Digits, Mlp, Stopwatch, drive

from acefl import ACE, ASGD, FedBuff, Scenario, Stop, simulate
from acefl.tasks import TorchTask

RULES = {"ACE": (ACE(), 0.02), "ASGD": (ASGD(), LR), "FedBuff": (FedBuff(buffer=BUFFER), 0.5)}


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    rule, lr = RULES[method]
    task = TorchTask(Mlp(), nn.CrossEntropyLoss(), digits.clients, test=digits.test, batch=BATCH)
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
    drive(run)
