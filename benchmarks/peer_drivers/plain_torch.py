"""Two floors: the gradients alone, one after another, and the shortest honest event loop (ASGD with stale models)."""

from __future__ import annotations

import heapq
import random

import torch
from torch import nn
from work import BATCH, EVERY, LR, Answer, Digits, Mlp, Stopwatch, drive, evaluate


def gradient(model: nn.Module, parameters: list[nn.Parameter], data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = data
    draw = torch.randint(len(targets), (BATCH,))
    loss = nn.functional.cross_entropy(model(inputs[draw]), targets[draw])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    return gradients(digits, arrivals) if method == "gradients" else events(digits, arrivals)


def gradients(digits: Digits, arrivals: int) -> Answer:
    model = Mlp()
    parameters = list(model.parameters())
    watch = Stopwatch()
    for arrival in range(arrivals):
        gradient(model, parameters, digits.clients[arrival % len(digits.clients)])
    return arrivals, watch.stop(), evaluate(model, digits)


def events(digits: Digits, arrivals: int) -> Answer:
    model, chance = Mlp(), random.Random(0)
    parameters = list(model.parameters())
    watch = Stopwatch()
    server = nn.utils.parameters_to_vector(parameters).detach()
    heap: list[tuple[float, int, int, torch.Tensor]] = []

    def dispatch(now: float, sequence: int, client: int) -> None:
        done = now + digits.slowness(client) * chance.expovariate(1.0)
        heapq.heappush(heap, (done, sequence, client, server))

    for client in range(len(digits.clients)):
        dispatch(0.0, client, client)
    for arrival in range(arrivals):
        now, _, client, stale = heapq.heappop(heap)
        nn.utils.vector_to_parameters(stale, parameters)
        server = server - LR * gradient(model, parameters, digits.clients[client])
        dispatch(now, len(digits.clients) + arrival, client)
        if (arrival + 1) % EVERY == 0:
            nn.utils.vector_to_parameters(server, parameters)
            evaluate(model, digits)
    seconds = watch.stop()
    nn.utils.vector_to_parameters(server, parameters)
    return arrivals, seconds, evaluate(model, digits)


if __name__ == "__main__":
    drive(run)
