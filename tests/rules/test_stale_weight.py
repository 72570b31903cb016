"""FedStaleWeight against its formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import FedStaleWeightOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import Arrival, FedStaleWeight, InvalidInput


@settings(max_examples=60)
@given(histories(elastic=True), st.integers(1, 6))
def test_a_client_weighs_as_much_as_it_is_stale_on_average(history: History, buffer: int) -> None:
    method = FedStaleWeight(buffer)
    walk(history, lambda: method.build(history.clients, torch.zeros(DIM)), FedStaleWeightOracle(buffer))


def test_a_client_five_times_as_stale_weighs_five_times_as_much() -> None:
    rule = FedStaleWeight(buffer=2).build(2, torch.zeros(2))
    assert not rule.absorb(Arrival(0, torch.tensor([1.0, 0.0]), 9, 10, 0))
    assert rule.absorb(Arrival(1, torch.tensor([0.0, 1.0]), 5, 10, 1))
    torch.testing.assert_close(rule.direction(), torch.tensor([1 / 6, 5 / 6]))


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="buffer is True"):
        FedStaleWeight(buffer=True)
