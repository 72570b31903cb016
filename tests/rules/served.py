"""The walk that holds a whole server against an oracle that speaks of models, for methods that mix them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from tests.rules.oracles import Numbers
from tests.rules.schedules import OLDEST, History, turns_of

from acefl import Arrival, Server
from acefl.core.rule import Method

START = torch.linspace(-1.0, 2.0, 5)


class ModelOracle(Protocol):
    def turn(self, w: Numbers, models: list[tuple[int, Numbers, int]]) -> Numbers | None:
        """The next model, from the current one and (client, its own model, staleness) of who comes; None: no step."""
        ...


def server_of(method: Method, clients: int, lr: float) -> Server:
    return Server(START, method.build(clients, START, [1] * clients), lr, clients)


def walk_models(history: History, method: Method, oracle: ModelOracle, lr: float = 0.3) -> int:
    """Both must have the same model after every turn. A client's own model is where it started, less lr times its
    update. Now and then a new server goes on from the state of the old one. Returns the steps made."""
    server = server_of(method, history.clients, lr)
    models: list[Numbers] = [START.double().numpy()]
    largest = 2.0
    for number, turn in enumerate(turns_of(history)):
        if number % 5 == 4:
            server, old = server_of(method, history.clients, lr), server
            server.load_state_dict(old.state_dict())
        arrivals, sent = [], []
        for client, age, update, task in turn:
            trained_on = max(0, server.version - age)
            arrivals.append(Arrival(client, update, trained_on, server.version, task))
            sent.append((client, models[trained_on] - lr * update.double().numpy(), server.version - trained_on))
            largest = max(largest, float(update.abs().max()))
        new = oracle.turn(models[-1], sent)
        assert server.handle(arrivals) is (new is not None)
        if new is not None:
            models.append(new)
        worked_on = set(range(server.version - OLDEST, server.version))
        server.tidy(worked_on.copy)
        np.testing.assert_allclose(server.model.double().numpy(), models[-1], rtol=0, atol=1e-5 * largest)
    return server.version
