"""Vanilla asynchronous SGD against its formula."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from tests.rules.oracles import ASGDOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import ASGD


@settings(max_examples=30)
@given(histories(elastic=True))
def test_every_arrival_is_a_step_on_it_alone(history: History) -> None:
    walk(history, lambda: ASGD().build(history.clients, torch.zeros(DIM)), ASGDOracle())
