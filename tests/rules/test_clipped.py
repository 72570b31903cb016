"""Clipping: any method, given shorter updates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import ACEOracle, ASGDOracle, CA2FLOracle, ClippedOracle, Oracle
from tests.rules.schedules import DIM, Come, Event, History, Join, Leave, histories, walk
from tests.rules.test_contract import agree

from acefl import ACE, ACED, FADAS, Arrival, Clipped, FedAvg, FedBuff, InvalidInput
from acefl.core.rule import Method
from acefl.rules import parse


def oracle_of(name: str, clients: int) -> Oracle:
    if name == "ACE":
        return ACEOracle([1.0] * clients, wait=True)
    return CA2FLOracle(clients, DIM, 10) if name == "CA2FL" else ASGDOracle()


@settings(max_examples=60)
@given(histories(elastic=True), st.sampled_from(("ASGD", "ACE", "CA2FL")), st.sampled_from((0.5, 5.0, 1e9)))
def test_every_step_is_the_methods_own_of_shorter_updates(history: History, name: str, threshold: float) -> None:
    oracle = ClippedOracle(oracle_of(name, history.clients), threshold)
    walk(history, lambda: Clipped(name, threshold).build(history.clients, torch.zeros(DIM)), oracle)


def test_who_has_left_no_longer_counts() -> None:
    events: list[Event] = [[Come(0, 0)], [Come(1, 0)], [Come(2, 0)], Leave(0), [Come(1, 0)], Join(1.0), [Come(3, 0)]]
    oracle = ClippedOracle(ACEOracle([1.0] * 3, wait=True), 3.0)
    assert walk(History(3, 1, events), lambda: Clipped("ACE", 3.0).build(3, torch.zeros(DIM)), oracle) == 3


@settings(max_examples=20)
@given(histories(), st.sampled_from((ACED(tau=3), FedBuff(buffer=3, staleness="sqrt"), ACE(table="int8"))))
def test_a_threshold_out_of_reach_changes_nothing(history: History, method: Method) -> None:
    agree(history, Clipped(method, 1e9), method)


def test_no_step_is_longer_than_the_threshold() -> None:
    rule = Clipped("ASGD", 2.0).build(1, torch.zeros(3))
    rule.absorb(Arrival(0, torch.tensor([3e30, 4e30, 0.0]), 0, 0, 0))
    assert rule.direction().tolist() == pytest.approx([1.2, 1.6, 0.0])


def test_it_is_its_method_to_everybody_who_asks() -> None:
    for method in (FedAvg(cohort=2), FADAS(buffer=3), FedBuff(buffer=7), ACED()):
        clipped = Clipped(method)
        for name in ("optimizer", "rounds", "cohort", "arrivals_per_step", "tasks_per_step", "uploads"):
            assert getattr(clipped, name) == getattr(method, name)
        assert parse(f"Clipped(method={clipped.method!r})") == clipped


def test_wrong_settings_are_refused_by_name_and_nothing_is_imported() -> None:
    with pytest.raises(InvalidInput, match="threshold is 0"):
        Clipped(threshold=0)
    with pytest.raises(InvalidInput, match="unknown method 'Clipped'"):
        Clipped("Clipped")
    with pytest.raises(InvalidInput, match="unknown method 'antigravity:Mine'"):
        Clipped("antigravity:Mine")
    for method in ("FedAsync", 'ACE(variant="client-held")'):
        with pytest.raises(InvalidInput, match="allowed: one whose clients upload updates"):
            Clipped(method)
