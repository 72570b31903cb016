"""Delay-adaptive asynchronous SGD against its formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import DelayAdaptiveOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import DelayAdaptiveASGD, InvalidInput


@settings(max_examples=40)
@given(histories(elastic=True), st.none() | st.integers(1, 6))
def test_a_staler_update_than_the_threshold_makes_a_smaller_step(history: History, threshold: int | None) -> None:
    method, oracle = DelayAdaptiveASGD(threshold), DelayAdaptiveOracle(threshold or history.clients)
    walk(history, lambda: method.build(history.clients, torch.zeros(DIM)), oracle)


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="threshold is 0"):
        DelayAdaptiveASGD(threshold=0)
