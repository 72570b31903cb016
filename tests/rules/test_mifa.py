"""MIFA against its formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import MIFAOracle
from tests.rules.schedules import History, histories, walk
from tests.rules.test_contract import agree

from acefl import ACE, MIFA, InvalidInput
from acefl.rules.settings import ENCODINGS, WARMUPS


def against_oracle(history: History, method: MIFA) -> int:
    oracle = MIFAOracle(history.clients, method.buffer, wait=method.warmup == "wait")
    return walk(history, lambda: method.build(history.clients, torch.zeros(history.dim)), oracle)


methods = st.builds(MIFA, buffer=st.integers(1, 6), table=st.sampled_from(ENCODINGS), warmup=st.sampled_from(WARMUPS))


@settings(max_examples=60)
@given(histories(elastic=True), methods)
def test_every_round_steps_on_the_mean_of_all_memorised_updates(history: History, method: MIFA) -> None:
    against_oracle(history, method)


@settings(max_examples=30)
@given(histories())
def test_with_rounds_of_one_it_is_ace(history: History) -> None:
    agree(history, MIFA(buffer=1), ACE())


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="buffer is 0"):
        MIFA(buffer=0)
    with pytest.raises(InvalidInput, match="warmup is 'never'"):
        MIFA(warmup="never")
