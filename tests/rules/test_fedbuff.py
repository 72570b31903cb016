"""FedBuff against its algorithm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import FedBuffOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import FedBuff, InvalidInput
from acefl.rules.fedbuff import STALENESS


@settings(max_examples=50)
@given(histories(elastic=True), st.integers(1, 6), st.sampled_from(STALENESS))
def test_every_step_is_the_mean_of_the_buffer(history: History, buffer: int, staleness: str) -> None:
    method = FedBuff(buffer, staleness)
    walk(history, lambda: method.build(history.clients, torch.zeros(DIM)), FedBuffOracle(buffer, staleness))


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="buffer is 0"):
        FedBuff(buffer=0)
    with pytest.raises(InvalidInput, match="staleness is 'linear'"):
        FedBuff(staleness="linear")
