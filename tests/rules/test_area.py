"""AREA against its algorithm, on models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import AREAOracle
from tests.rules.schedules import Come, Event, History, histories
from tests.rules.served import START, server_of, walk_models

from acefl import AREA, Arrival, InvalidInput


@settings(max_examples=80)
@given(histories(), st.integers(1, 5))
def test_the_server_adds_the_share_of_what_clients_models_changed(history: History, buffer: int) -> None:
    walk_models(history, AREA(buffer), AREAOracle(history.clients, START.double().numpy(), buffer))


def test_rounding_does_not_pile_up_over_a_long_run() -> None:
    events: list[Event] = [[Come(turn % 3, turn % 4)] for turn in range(1000)]
    oracle = AREAOracle(3, START.double().numpy(), 1)
    assert walk_models(History(3, 7, events), AREA(), oracle, lr=0.01) == 1000


def test_who_leaves_no_longer_counts_and_who_joins_counts_once_it_has_come() -> None:
    """The model is the mean of the models of those that count."""
    server = server_of(AREA(), 2, lr=1.0)
    one, two, three = torch.full((5,), 1.0), torch.full((5,), 4.0), torch.full((5,), 9.0)
    server.handle([Arrival(0, START - one, 0, 0, 0)])
    server.handle([Arrival(1, START - two, 0, 1, 1)])
    torch.testing.assert_close(server.model, (one + two) / 2)
    server.join(3)
    server.leave(1)
    server.handle([Arrival(0, START - one, 0, 2, 2)])
    torch.testing.assert_close(server.model, one)
    server.handle([Arrival(2, START - three, 0, 3, 3)])
    torch.testing.assert_close(server.model, (one + three) / 2)


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="buffer is 0"):
        AREA(buffer=0)
    with pytest.raises(InvalidInput, match="table is 'int3'"):
        AREA(table="int3")
