"""The synchronous anchors: their means, and that nobody gets a model before its round begins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import FedAvgOracle
from tests.rules.schedules import DIM, History, histories, walk

from acefl import Adam, FedAdam, FedAvg, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method
from acefl.runs.replay import replay


@settings(max_examples=80)
@given(histories(elastic=True), st.sampled_from((None, 1, 2, 3)), st.booleans())
def test_a_round_steps_on_the_weighted_mean_of_what_its_clients_report(
    history: History, cohort: int | None, by_samples: bool
) -> None:
    samples = [2 + client for client in range(history.clients)]
    method = FedAvg(cohort, "samples" if by_samples else "uniform")
    oracle = FedAvgOracle([float(count) if by_samples else 1.0 for count in samples], cohort)
    walk(history, lambda: method.build(history.clients, torch.zeros(DIM), samples), oracle)


TASK = tasks.quadratic(clients=6, dim=3, seed=0)


@pytest.mark.parametrize("clock", ["event", "tick"])
@pytest.mark.parametrize("concurrency", [None, 1, 4])
def test_everybody_reports_once_per_round_on_the_round_s_model(clock: str, concurrency: int | None) -> None:
    scenario = Scenario(clock=clock, spread=20.0, concurrency=concurrency)
    run = simulate(TASK, FedAvg(), lr=0.3, scenario=scenario, stop=Stop(steps=5))
    assert run.arrivals == 30
    assert (run.events["version"] == run.events["trained_on"]).all()
    for _, reports in run.events.groupby("version"):
        assert sorted(reports["client"]) == list(range(6))


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    scenario = Scenario(law="constant", delay=1.0, spread=9.0)
    run = simulate(TASK, FedAvg(), lr=0.3, scenario=scenario, stop=Stop(steps=4))
    assert run.time == pytest.approx(4 * 9.0)


def test_one_round_of_everybody_is_gradient_descent() -> None:
    task = tasks.quadratic(clients=6, dim=3, noise=0.0, seed=0)
    run = simulate(task, FedAvg(), lr=0.3, stop=Stop(steps=4))
    model = task.initial()
    for _ in range(4):
        model = model - 0.3 * task.updates(model.expand(6, -1), list(range(6)), [0] * 6).mean(0)
    torch.testing.assert_close(run.model, model)


@pytest.mark.parametrize("method", [FedAvg(cohort=2), FedAdam(cohort=2)])
def test_a_cohort_is_drawn_anew_for_every_round_and_nobody_else_works(method: Method) -> None:
    run = simulate(TASK, method, lr=0.05, scenario=Scenario(spread=20.0), stop=Stop(steps=40))
    assert run.arrivals == 80
    assert (run.events["version"] == run.events["trained_on"]).all()
    assert all(len(set(reports["client"])) == 2 for _, reports in run.events.groupby("version"))
    assert min(run.participation) > 0


@pytest.mark.parametrize("method", [FedAvg(), FedAvg(cohort=3)])
@pytest.mark.parametrize("rejoin", [None, 0.7])
def test_rounds_go_on_without_who_left_and_again_with_who_is_back(method: Method, rejoin: float | None) -> None:
    scenario = Scenario(spread=5.0, dropout=0.5, dropout_at=0.3, rejoin_at=rejoin)
    run = simulate(TASK, method, lr=0.3, scenario=scenario, stop=Stop(steps=40))
    last = set(run.events[run.events["version"] >= 35]["client"])
    assert run.steps == 40
    assert (len(last) == 6) is (rejoin is not None)


def test_fedadam_is_fedavg_with_adam() -> None:
    one = simulate(TASK, FedAdam(beta1=0.5, epsilon=0.1), lr=0.1, stop=Stop(steps=9))
    two = simulate(TASK, FedAvg(), lr=0.1, stop=Stop(steps=9), optimizer=Adam(beta1=0.5, epsilon=0.1))
    assert torch.equal(one.model, two.model)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidInput, match="cohort is 0"):
        FedAvg(cohort=0)
    with pytest.raises(InvalidInput, match="beta1 is 1"):
        FedAdam(beta1=1)
    with pytest.raises(InvalidInput, match="allowed: event and tick"):
        simulate(TASK, FedAvg(), lr=0.1, scenario=Scenario(clock="sampled"))
    with pytest.raises(InvalidInput, match=r"concurrency is 3; allowed with FedAvg\(cohort=2\): 2"):
        simulate(TASK, FedAvg(cohort=2), lr=0.1, scenario=Scenario(concurrency=3))
    with pytest.raises(InvalidInput, match="cohort is 9|concurrency is 9"):
        simulate(TASK, FedAvg(cohort=9), lr=0.1)
    with pytest.raises(InvalidInput, match="decides who works when"):
        replay(simulate(TASK, FedAvg(), lr=0.1, stop=Stop(steps=2)), FedAvg())
