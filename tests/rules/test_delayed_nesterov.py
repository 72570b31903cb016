"""Delayed Nesterov against its algorithm, on a whole server."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import ASGDOracle, NesterovOracle
from tests.rules.schedules import History, histories, turns_of
from tests.rules.served import START, server_of

from acefl import Adam, Arrival, DelayedNesterov, InvalidInput, Server


@settings(max_examples=60)
@given(histories(), st.sampled_from(((1, 0.0), (1, 1.0), (3, 0.0), (3, 0.2), (4, 0.25))), st.sampled_from((0.0, 0.8)))
def test_every_step_is_that_of_the_algorithm(history: History, spacing: tuple[int, float], beta: float) -> None:
    period, c = spacing
    method = DelayedNesterov(period, beta, c)
    server = server_of(method, history.clients, 0.1)
    arrived, nesterov = ASGDOracle(), NesterovOracle(beta, period, c)
    w = START.double().numpy()
    for number, turn in enumerate(turns_of(history)):
        if number % 5 == 4:
            server, old = server_of(method, history.clients, 0.1), server
            server.load_state_dict(old.state_dict())
        arrivals = []
        for client, age, update, task in turn:
            arrivals.append(Arrival(client, update, max(0, server.version - age), server.version, task))
            arrived.absorb(client, update.double().numpy(), 0, 0)
        assert server.handle(arrivals)
        w = nesterov.step(w, arrived.step(0), 0.1)
        np.testing.assert_allclose(server.model.double().numpy(), w, rtol=1e-4, atol=1e-3)


def test_with_a_period_of_one_it_is_torchs_nesterov() -> None:
    server = server_of(DelayedNesterov(period=1, beta=0.7), 1, 0.1)
    weights = START.clone().requires_grad_()
    torchs = torch.optim.SGD([weights], lr=0.1, momentum=0.7, nesterov=True)
    for task in range(6):
        gradient = torch.sin(torch.arange(5.0) * (1 + task))
        server.handle([Arrival(0, gradient, task, task, task)])
        weights.grad = gradient.clone()
        torchs.step()
        torch.testing.assert_close(server.model, weights.detach())


def test_it_brings_its_own_optimizer_and_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the method brings its own"):
        Server(torch.zeros(2), DelayedNesterov().build(2, torch.zeros(2)), 0.1, 2, optimizer=Adam())
    for wrong in ({"period": 0}, {"beta": 1.0}, {"c": 0.2}, {"c": -0.1}):
        [(name, value)] = wrong.items()
        with pytest.raises(InvalidInput, match=f"{name} is {value}"):
            DelayedNesterov(**wrong)  # type: ignore[arg-type]
