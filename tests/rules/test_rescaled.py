"""Rescaled ASGD against its formula, and what it is for: nobody moves the model further for being fast."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.rules.oracles import RescaledASGDOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import ASGD, Arrival, RescaledASGD, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method


@settings(max_examples=60)
@given(histories(elastic=True))
def test_every_step_is_rescaled_by_the_clients_time(history: History) -> None:
    walk(history, lambda: RescaledASGD().build(history.clients, torch.zeros(DIM)), RescaledASGDOracle())


def test_with_fixed_times_every_client_gets_the_same_sum_of_steps_and_their_mean_is_one() -> None:
    """Two clients, one five times as fast: the paper's fixed-computation model."""
    times, ready, sent = (1.0, 5.0), [1.0, 5.0], [0, 0]
    rule, sums, version = RescaledASGD().build(2, torch.zeros(2)), torch.zeros(2), 0
    steps = []
    for version in range(3000):
        client = int(np.argmin(ready))
        assert rule.absorb(Arrival(client, torch.eye(2)[client], sent[client], version, version))
        steps.append(float(rule.direction().sum()))
        sums += rule.direction()
        rule.clear()
        ready[client] += times[client]
        sent[client] = version + 1
    assert float(sums[1] / sums[0]) == pytest.approx(1.0, abs=0.02)
    assert np.mean(steps) == pytest.approx(1.0, abs=0.02)


def test_it_ends_nearer_to_the_mean_of_all_clients_than_asgd() -> None:
    task = tasks.quadratic(clients=10, dim=5, seed=0, noise=0.0)

    def gap(method: Method) -> float:
        stop = Stop(arrivals=4000)
        return simulate(task, method, lr=0.005, scenario=Scenario(spread=20.0, law="constant"), stop=stop).final["gap"]

    assert gap(RescaledASGD()) < 0.1 * gap(ASGD())
