"""Ringleader ASGD against its algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import RingleaderOracle
from tests.rules.schedules import Come, Event, History, Join, Leave, histories, walk

from acefl import InvalidInput, RingleaderASGD, Scenario, Stop, simulate, tasks


def against_oracle(history: History, method: RingleaderASGD) -> int:
    build = lambda: method.build(history.clients, torch.zeros(history.dim))  # noqa: E731
    return walk(history, build, RingleaderOracle(history.clients))


@settings(max_examples=100)
@given(histories(elastic=True))
def test_every_step_is_that_of_the_algorithm(history: History) -> None:
    against_oracle(history, RingleaderASGD())


def test_the_example_of_the_paper_s_two_phases() -> None:
    """Four clients: a fast one comes three times while the slow are awaited; then exactly four steps are made."""
    collect: list[Event] = [[Come(0, 0)], [Come(0, 0)], [Come(1, 0)], [Come(0, 0)], [Come(2, 0)]]
    steps: list[Event] = [[Come(3, 0)], [Come(0, 1)], [Come(0, 0)], [Come(1, 2)], [Come(0, 1)], [Come(2, 3)]]
    assert against_oracle(History(4, 1, [*collect]), RingleaderASGD()) == 0
    assert against_oracle(History(4, 1, [*collect, *steps]), RingleaderASGD()) == 4
    assert against_oracle(History(4, 1, [*collect, *steps, [Come(1, 0)], [Come(2, 0)]]), RingleaderASGD()) == 4
    assert (
        against_oracle(History(4, 1, [*collect, *steps, [Come(1, 0)], [Come(2, 0)], [Come(3, 4)]]), RingleaderASGD())
        == 5
    )


@given(st.integers(2, 6), st.integers(0, 50), st.sampled_from((1.0, 5.0, 40.0)))
@settings(max_examples=20)
def test_nothing_arrives_staler_than_2n_minus_2(clients: int, seed: int, spread: float) -> None:
    """The paper's bound, on every update of a run when it arrives."""
    task = tasks.quadratic(clients=clients, dim=2, seed=seed)
    run = simulate(
        task,
        RingleaderASGD(),
        lr=0.01,
        scenario=Scenario(spread=spread),
        stop=Stop(steps=6 * clients, arrivals=5000),
        seed=seed,
    )
    assert int((run.events["version"] - run.events["trained_on"]).max()) <= 2 * clients - 2
    assert run.steps == 6 * clients


def test_a_table_in_a_file_and_clients_that_come_and_go(tmp_path: Path) -> None:
    turns: list[Event] = [
        [Come(0, 0)],
        [Come(2, 0), Come(1, 0)],
        Leave(1),
        [Come(0, 1)],
        Join(1.0),
        [Come(2, 1)],
        [Come(3, 0)],
    ]
    places = iter(range(100))
    method = RingleaderASGD()
    history = History(3, 5, turns * 3, dim=300)
    in_memory = against_oracle(history, method)

    def build() -> object:
        return RingleaderASGD(home=tmp_path / str(next(places))).build(history.clients, torch.zeros(history.dim))

    assert walk(history, build, RingleaderOracle(history.clients)) == in_memory > 3


def test_a_run_goes_on_when_half_the_clients_leave() -> None:
    task = tasks.quadratic(clients=6, dim=3, seed=0)
    scenario = Scenario(spread=10.0, dropout=0.5, dropout_at=0.3)
    run = simulate(task, RingleaderASGD(), lr=0.05, scenario=scenario, stop=Stop(steps=60, arrivals=5000))
    assert run.steps == 60
    assert run.final["gap"] < run.metrics[0]["gap"]


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="home is empty"):
        RingleaderASGD(home="")
