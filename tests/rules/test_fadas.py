"""FADAS against its algorithm: the buffer, AMSGrad and the learning rate together, as the server runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.schedules import History, histories, turns_of
from tests.rules.served import START, server_of

from acefl import FADAS, Adam, Arrival, InvalidInput, Server


@settings(max_examples=80)
@given(histories(), st.integers(1, 4), st.sampled_from((None, 1, 3)), st.sampled_from((0.05, 0.8)))
def test_every_step_is_that_of_the_algorithm(history: History, buffer: int, threshold: int | None, lr: float) -> None:
    method = FADAS(buffer, threshold, beta1=0.8, beta2=0.9, epsilon=1e-2)
    server = server_of(method, history.clients, lr)
    x = START.double().numpy()
    m, v, v_hat = np.zeros(5), np.full(5, 1e-4), np.full(5, 1e-4)
    waiting: list[tuple[np.ndarray, int]] = []
    for number, turn in enumerate(turns_of(history)):
        if number % 5 == 4:
            server, old = server_of(method, history.clients, lr), server
            server.load_state_dict(old.state_dict())
        arrivals = []
        for client, age, update, task in turn:
            trained_on = max(0, server.version - age)
            arrivals.append(Arrival(client, update, trained_on, server.version, task))
            waiting.append((update.double().numpy(), server.version - trained_on))
        full = len(waiting) >= buffer
        assert server.handle(arrivals) is full
        if full:
            delta = np.mean([update for update, _ in waiting], axis=0)
            tau_max = max(tau for _, tau in waiting)
            waiting = []
            m = 0.8 * m + 0.2 * delta
            v = 0.9 * v + 0.1 * delta**2
            v_hat = np.maximum(v_hat, v)
            eta = lr if threshold is None or tau_max <= threshold else min(lr, 1 / tau_max)
            x = x - eta * m / (np.sqrt(v_hat) + 1e-2)
            np.testing.assert_allclose(server.model.double().numpy(), x, rtol=1e-4, atol=1e-4)


def test_it_brings_its_own_optimizer_and_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the method brings its own"):
        Server(torch.zeros(2), FADAS().build(2, torch.zeros(2)), 0.1, 2, optimizer=Adam())
    with pytest.raises(InvalidInput, match="beta2 is 1.0"):
        FADAS(beta2=1.0)
    with pytest.raises(InvalidInput, match="threshold is 0"):
        FADAS(threshold=0)
