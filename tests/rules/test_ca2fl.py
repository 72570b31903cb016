"""CA²FL against its algorithm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import CA2FLOracle
from tests.rules.schedules import Come, Event, History, Join, Leave, histories, long_history, walk

from acefl import CA2FL, InvalidInput
from acefl.rules.settings import ENCODINGS


def against_oracle(history: History, method: CA2FL) -> int:
    oracle = CA2FLOracle(history.clients, history.dim, method.buffer)
    return walk(history, lambda: method.build(history.clients, torch.zeros(history.dim)), oracle)


methods = st.builds(CA2FL, buffer=st.integers(1, 6), table=st.sampled_from(ENCODINGS))


@settings(max_examples=60)
@given(histories(), methods)
def test_every_step_is_the_calibrated_buffer(history: History, method: CA2FL) -> None:
    against_oracle(history, method)


@settings(max_examples=60)
@given(histories(elastic=True), methods)
def test_the_mean_is_over_those_that_count_when_clients_join_and_leave(history: History, method: CA2FL) -> None:
    against_oracle(history, method)


@pytest.mark.parametrize("table", ENCODINGS)
def test_a_large_model(table: str) -> None:
    assert against_oracle(long_history(Leave(1), Join(1.0), [Come(3, None)]), CA2FL(buffer=2, table=table)) == 6


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([[Come(0, 0)], Leave(0), Leave(0), [Come(1, 0)], [Come(2, 0)]], id="leaves twice"),
        pytest.param([[Come(0, 0)], [Come(1, 0)], Leave(0), [Come(0, 0)], [Come(1, 0)]], id="comes back"),
        pytest.param([[Come(0, 0)], [Come(1, 0)], [Come(0, 1)], Leave(0), [Come(1, 0)], [Come(2, 0)]], id="in buffer"),
        pytest.param([Leave(2), Leave(1), [Come(0, 0)], Join(1.0), [Come(0, 0)], [Come(3, 0)]], id="never seen"),
    ],
)
def test_a_client_that_leaves_is_taken_out_of_the_mean_once(events: list[Event]) -> None:
    against_oracle(History(3, 3, events * 2), CA2FL(buffer=2))


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="buffer is -1"):
        CA2FL(buffer=-1)
    with pytest.raises(InvalidInput, match="table is 'int3'"):
        CA2FL(table="int3")
