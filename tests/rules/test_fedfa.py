"""FedFa against its algorithm, on models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import FedFaOracle
from tests.rules.schedules import Come, Event, History, histories
from tests.rules.served import walk_models

from acefl import Arrival, FedFa, InvalidInput


@settings(max_examples=80)
@given(histories(), st.integers(1, 6))
def test_the_model_is_the_mean_of_the_last_clients_models(history: History, window: int) -> None:
    walk_models(history, FedFa(window), FedFaOracle(window))


def test_rounding_does_not_pile_up_over_a_long_run() -> None:
    """A thousand steps, each checked: the rule's own account of where the model is does not drift from the model."""
    events: list[Event] = [[Come(turn % 3, turn % 4)] for turn in range(1000)]
    assert walk_models(History(3, 7, events), FedFa(4), FedFaOracle(4), lr=0.01) == 997


def test_the_oldest_is_who_came_first_not_who_was_sent_a_model_first() -> None:
    rule = FedFa(window=2).build(3, torch.zeros(1))
    for task in (2, 0, 1):
        rule.absorb(Arrival(task, torch.tensor([float(task)]), 0, 0, task))
    assert rule.direction().item() == 0.5  # of 0 and 1: the model of task 2 came first


def test_what_comes_in_one_turn_has_the_order_in_which_it_came() -> None:
    rule = FedFa(window=2).build(4, torch.zeros(1))
    for turn, tasks in enumerate(((0, 1), (4, 3, 2))):
        for task in tasks:
            rule.absorb(Arrival(task % 4, torch.tensor([float(task)]), 0, turn, task))
        found = rule.direction().item()
    assert found == (3 + 2) / 2, "the position is 0.5 after the first step, and the models lie 3 and 2 from there"


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="window is 0"):
        FedFa(window=0)
