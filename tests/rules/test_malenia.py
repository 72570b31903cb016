"""Malenia SGD against its algorithm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import MaleniaOracle
from tests.rules.schedules import Come, Event, History, Join, Leave, histories, walk

from acefl import InvalidInput, MaleniaSGD, Scenario, Stop, simulate, tasks


def against_oracle(history: History, method: MaleniaSGD) -> int:
    build = lambda: method.build(history.clients, torch.zeros(history.dim))  # noqa: E731
    return walk(history, build, MaleniaOracle(history.clients, method.batch))


@settings(max_examples=80)
@given(histories(elastic=True), st.sampled_from((1, 1.2, 1.5, 2.0, 3)))
def test_a_step_is_the_mean_over_clients_of_their_mean_gradients_of_the_current_model(
    history: History, batch: float
) -> None:
    against_oracle(history, MaleniaSGD(batch))


def test_the_condition_is_on_the_harmonic_mean() -> None:
    """Of counts 5 and 1 it is 5/3, of 5 and 2 it is 20/7: arithmetic means of 3 and 3.5 do not count."""
    fast: list[Event] = [[Come(0, 0)] for _ in range(5)]
    assert against_oracle(History(2, 0, [*fast, [Come(1, 0)]]), MaleniaSGD(batch=2.5)) == 0
    assert against_oracle(History(2, 0, [*fast, [Come(1, 0)], [Come(1, 0)]]), MaleniaSGD(batch=2.5)) == 1


@pytest.mark.parametrize(("clients", "batch"), [(3, 5), (3, 10), (6, 9), (7, 9)])
def test_equal_counts_reach_their_own_mean_whatever_rounding_makes_of_it(clients: int, batch: int) -> None:
    turns: list[Event] = [[Come(client, 0)] for _ in range(batch) for client in range(clients)]
    assert against_oracle(History(clients, 0, turns), MaleniaSGD(batch=batch)) == 1


def test_clients_that_come_and_go() -> None:
    turns: list[Event] = [
        [Come(0, 0)],
        [Come(2, 0), Come(1, 0)],
        Leave(1),
        [Come(0, 0)],
        Join(1.0),
        [Come(2, 0)],
        [Come(3, 0)],
    ]
    assert against_oracle(History(3, 5, turns * 2, dim=300), MaleniaSGD()) == 4


def test_the_few_gradients_of_one_who_left_do_not_hold_up_the_step() -> None:
    """With one gradient of client 1 for good, the harmonic mean of both would stay below 2."""
    turns: list[Event] = [[Come(1, 0)], Leave(1), *([[Come(0, 0)]] * 3)]
    assert against_oracle(History(2, 0, turns), MaleniaSGD(batch=3)) == 1


def test_there_is_no_staleness_in_a_step_and_a_run_goes_on_when_half_the_clients_leave() -> None:
    task = tasks.quadratic(clients=6, dim=3, seed=0)
    scenario = Scenario(spread=10.0, dropout=0.5, dropout_at=0.3)
    run = simulate(task, MaleniaSGD(), lr=0.2, scenario=scenario, stop=Stop(steps=30, arrivals=5000))
    assert run.steps == 30
    assert run.final["gap"] < run.metrics[0]["gap"]


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="batch is 0.5"):
        MaleniaSGD(batch=0.5)
    with pytest.raises(InvalidInput, match="home is empty"):
        MaleniaSGD(home="")
