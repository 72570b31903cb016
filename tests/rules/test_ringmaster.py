"""Ringmaster ASGD against its algorithm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import RingmasterOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import InvalidInput, RingmasterASGD, Scenario, Stop, simulate, tasks


@settings(max_examples=50)
@given(histories(elastic=True), st.integers(1, 6))
def test_a_gradient_is_used_if_its_delay_is_below_the_threshold(history: History, threshold: int) -> None:
    method = RingmasterASGD(threshold)
    walk(history, lambda: method.build(history.clients, torch.zeros(DIM)), RingmasterOracle(threshold))


def test_what_is_left_out_is_an_upload_but_no_step() -> None:
    task = tasks.quadratic(clients=8, dim=3, seed=0)
    run = simulate(task, RingmasterASGD(threshold=3), lr=0.05, scenario=Scenario(spread=20.0), stop=Stop(arrivals=300))
    staleness = run.events["version"] - run.events["trained_on"]
    assert run.steps == int((staleness < 3).sum()) < run.arrivals == 300


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="threshold is 0"):
        RingmasterASGD(threshold=0)
