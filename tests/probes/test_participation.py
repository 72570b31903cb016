"""Influence is the sum of a client's weights over all steps, and the numbers made of it are what they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tests.probes.dense import NAMES, ORACLES, Dense
from tests.rules.oracles import Oracle

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method
from acefl.probes import Participation
from acefl.probes.influence import Influence
from acefl.probes.participation import effective, gini, rank_correlation
from acefl.runs.record import Run
from acefl.runs.simulate import simulation
from acefl.runs.training import Training

CLIENTS = 6
TASK = tasks.quadratic(clients=CLIENTS, dim=5, seed=3)
SPREAD = Scenario(spread=20.0)


def run(rule: Method, *observers: Any, task: Any = TASK, scenario: Scenario = SPREAD, arrivals: int = 200) -> Run:
    stop = Stop(arrivals=arrivals)
    return simulate(task, rule, lr=0.05, scenario=scenario, stop=stop, evaluations=4, observers=observers)


SCENARIOS = {
    "event": SPREAD,
    "tick": Scenario(clock="tick", delay=2.0),
    "two at a time": Scenario(concurrency=2),
    "leaving": Scenario(spread=4.0, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize(("rule", "oracle"), ORACLES, ids=NAMES)
def test_influence_is_the_sum_of_weights_over_all_steps(
    rule: Method, oracle: Callable[[int, int], Oracle], scenario: Scenario
) -> None:
    dense = Dense(oracle, 400)
    finished = run(rule, Participation(), dense, scenario=scenario)
    sums = np.zeros(CLIENTS)
    for step in range(len(dense.weights)):
        for (client, _), weight in dense.by_pair(step).items():
            sums[client] += weight
    influence = [row["influence"] for row in finished.clients]
    assert influence == pytest.approx((sums / sums.sum()).tolist(), rel=1e-5)
    last = finished.final
    assert last["influence_gini"] == pytest.approx(gini(influence))
    assert last["influence_clients"] == pytest.approx(effective(influence))
    assert last["influence_slow"] == pytest.approx(influence[-1])  # one of six is the slowest fifth
    speeds = [1 / row["mean_time"] for row in finished.clients]
    assert last["influence_speed"] == pytest.approx(rank_correlation(influence, speeds))


def test_under_ace_all_have_the_same_influence_and_under_asgd_what_their_speed_gives_them() -> None:
    ace, asgd = run(ACE(), Participation()), run(ASGD(), Participation())
    assert ace.final["influence_gini"] == pytest.approx(0.0, abs=1e-6)
    assert ace.final["influence_clients"] == pytest.approx(CLIENTS)
    assert ace.final["influence_speed"] == 0.0
    counts = np.asarray(asgd.participation)
    assert [row["influence"] for row in asgd.clients] == pytest.approx((counts / counts.sum()).tolist())
    assert asgd.final["influence_speed"] > 0.8
    assert asgd.final["influence_gini"] > 0.3


def test_neighbours_in_speed_share_a_coordinate_above_the_most_that_are_followed() -> None:
    """Weights are then known per group, and their sums are those of the clients in it."""
    order = [3, 1, 5, 0, 2, 4]
    each = Influence(ASGD(), CLIENTS, TASK.samples, order, CLIENTS)
    grouped = Influence(ASGD(), CLIENTS, TASK.samples, order, 3)
    clients, versions = np.asarray([3, 3, 1, 4, 0, 3, 2, 4]), np.arange(8)
    for shadow in (each, grouped):
        shadow.follow(clients, versions, versions)
    assert each.sums.tolist() == [3, 1, 0, 1, 1, 2]  # by rank of speed
    assert grouped.sums.tolist() == [4, 1, 3]
    assert grouped.size.tolist() == [2, 2, 2]


@pytest.mark.parametrize("rule", [ACE(), FedBuff(buffer=4)])
def test_staleness_is_that_of_the_recorded_events(rule: Method) -> None:
    finished = run(rule, Participation())
    events = finished.events.assign(staleness=lambda e: e["version"] - e["trained_on"])
    per_client = events.groupby("client")["staleness"].mean()
    for row in finished.clients:
        own = events[events["client"] == row["client"]]["staleness"]
        assert row["staleness"] == pytest.approx(per_client[row["client"]])
        assert row["staleness_median"] == own.quantile(0.5, interpolation="lower")
        assert (own <= row["staleness_p90"]).mean() >= 0.9 > (own < row["staleness_p90"]).mean()
        assert row["staleness_max"] == own.max()
    history = finished.history
    for before, now in zip(history["arrival"], history["arrival"].iloc[1:], strict=False):
        window = events["staleness"].iloc[int(before) : int(now)]
        row = history[history["arrival"] == now].iloc[0]
        assert row["staleness_mean"] == pytest.approx(window.mean())
        assert row["staleness_max"] == window.max()
        assert row["staleness_median"] == window.quantile(0.5, interpolation="lower")
        assert (window <= row["staleness_p90"]).mean() >= 0.9 > (window < row["staleness_p90"]).mean()


@pytest.mark.parametrize("rule", [ACE(), ACED(tau=20), CA2FL(buffer=4), ASGD()])
@pytest.mark.parametrize("scenario", [SPREAD, Scenario(dropout=0.5, rejoin_at=0.8)], ids=["event", "dropout"])
def test_watching_does_not_change_the_run(rule: Method, scenario: Scenario) -> None:
    bare, watched = run(rule, scenario=scenario), run(rule, Participation(), scenario=scenario)
    assert torch.equal(bare.model, watched.model)
    assert bare.events.equals(watched.events)


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_history() -> None:
    def begin() -> Training:
        stop = Stop(arrivals=200)
        return simulation(TASK, CA2FL(buffer=4), lr=0.05, scenario=SPREAD, stop=stop, observers=[Participation()])

    whole = begin().complete()
    interrupted = begin()
    for _, spent in interrupted.advance():
        if spent >= 0.43:
            break
    resumed = begin()
    resumed.load_state_dict(interrupted.state_dict())
    finished = resumed.complete()
    assert finished.metrics == whole.metrics
    assert finished.clients == whole.clients


def test_the_worst_client_is_in_every_evaluation() -> None:
    finished = run(ASGD(), task=tasks.digits(clients=10), arrivals=50)
    assert finished.final["worst_accuracy"] == min(row["accuracy"] for row in finished.clients)
    assert finished.final["worst_loss"] == max(row["loss"] for row in finished.clients)
    assert "worst_loss" in run(ASGD(), arrivals=20).history.columns


shares = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=20).filter(lambda values: sum(values) > 1e-3)


@given(shares)
def test_gini_is_half_the_relative_mean_difference(values: list[float]) -> None:
    count = len(values)
    differences = sum(abs(a - b) for a in values for b in values) / count**2
    assert gini(values) == pytest.approx(differences / (2 * sum(values) / count), abs=1e-9)


@given(shares, st.integers(1, 20))
def test_the_effective_number_of_clients_is_between_one_and_all(values: list[float], count: int) -> None:
    assert 1 - 1e-9 <= effective(values) <= len(values) + 1e-9
    assert effective([3.0] * count) == pytest.approx(count)
    assert effective([1.0, *[0.0] * count]) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=20))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    left, right = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert rank_correlation(left, right) == 0.0
    else:
        assert rank_correlation(left, right) == pytest.approx(float(spearmanr(left, right).statistic))
