"""Clients in virtual time, against the plainest simulation there is and against what each clock promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import ACE, ASGD, NothingInFlight, Scenario, Stop, simulate, tasks
from acefl.core.rng import key
from acefl.core.types import Arrival, Event, Left, Lost, Vector
from acefl.fleets.scenario import Durations, dropouts
from acefl.fleets.simulated import SampledFleet, SimulatedFleet, simulated_fleet
from acefl.runs.record import Run

CLOCKS = ("event", "tick", "sampled")
N, DIM, LR = 12, 6, 0.05
WORK_STREAM = 11  # what keys a client's work; changing it changes every recorded run


@pytest.fixture(scope="module")
def task() -> tasks.Quadratic:
    return tasks.quadratic(clients=N, dim=DIM, noise=0.5, seed=2)


def run_of(
    task: tasks.Quadratic, scenario: Scenario, rule: ASGD | ACE | None = None, arrivals: int = 300, seed: int = 4
) -> Run:
    stop = Stop(arrivals=arrivals)
    return simulate(task, rule or ASGD(), lr=LR, scenario=scenario, stop=stop, seed=seed, evaluations=1)


def events_of(run: Run) -> list[tuple[float, int, int, int]]:
    return list(run.events[["time", "client", "trained_on", "version"]].itertuples(index=False, name=None))


# --- the reference ----------------------------------------------------------------------------------------------


def reference_asgd(
    task: tasks.Quadratic, scenario: Scenario, seed: int, arrivals: int
) -> tuple[list[tuple[float, int, int, int]], Vector]:
    """ASGD with everybody busy, as one would write it on a napkin: no heap, no batches, one gradient at a time."""
    durations, visits = Durations(scenario, task.clients, seed), [0] * task.clients
    model, version, now, started = task.initial(), 0, 0.0, 0
    at_work: list[tuple[float, int, int, int, Vector]] = []  # when, order of start, client, version, gradient
    log: list[tuple[float, int, int, int]] = []

    def start(client: int) -> None:
        nonlocal started
        gradient = task.updates(model.unsqueeze(0), [client], [key(seed, WORK_STREAM, client, visits[client])])[0]
        at_work.append((now + durations.of(client, visits[client]), started, client, version, gradient))
        visits[client] += 1
        started += 1

    for client in range(task.clients):
        start(client)
    while len(log) < arrivals:
        if scenario.clock == "event":
            finished = [min(at_work)]
            now = finished[0][0]
        else:
            now += 1.0
            finished = sorted(entry for entry in at_work if entry[0] <= now)
        for entry in finished:
            at_work.remove(entry)
            log.append((now, entry[2], entry[3], version))
        if finished:
            model = model - LR * torch.stack([entry[4] for entry in finished]).mean(0)
            version += 1
        for entry in finished:
            start(entry[2])
    return log, model


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(spread=30.0),
        Scenario(delay=3.0, law="lognormal", slow="random", spread=5.0, fixed=1.0),
        Scenario(clock="tick", delay=3.0, spread=4.0),
        Scenario(clock="tick", delay=0.2, law="pareto"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_simulator_is_the_plainest_simulation(task: tasks.Quadratic, scenario: Scenario, seed: int) -> None:
    run = run_of(task, scenario, arrivals=250, seed=seed)
    log, model = reference_asgd(task, scenario, seed, 250)
    assert events_of(run) == log
    torch.testing.assert_close(run.model, model, rtol=1e-4, atol=1e-5)


# --- the same run, whatever the machine does -----------------------------------------------------------------------


@pytest.mark.parametrize("clock", CLOCKS)
def test_same_seed_same_run_bit_for_bit(task: tasks.Quadratic, clock: str) -> None:
    scenario = Scenario(clock=clock, delay=3.0, spread=5.0, concurrency=5 if clock != "sampled" else None, dropout=0.3)
    one, again, other = (run_of(task, scenario, ACE(), seed=seed) for seed in (7, 7, 8))
    assert torch.equal(one.model, again.model)
    assert one.metrics == again.metrics
    assert one.events.equals(again.events)
    assert not one.events.equals(other.events)


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_batch_limit_changes_no_event_and_only_the_rounding(clock: str) -> None:
    runs = []
    for limit in (1, 5, 256):
        task = tasks.quadratic(clients=N, dim=DIM, noise=0.5, seed=2)
        task.batch_limit = limit
        runs.append(run_of(task, Scenario(clock=clock, delay=3.0, spread=5.0)))
    for run in runs[1:]:
        assert run.events.equals(runs[0].events)
        torch.testing.assert_close(run.model, runs[0].model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_saved_fleet_goes_on_bit_for_bit(task: tasks.Quadratic, clock: str, differences: bool) -> None:
    scenario = Scenario(clock=clock, delay=3.0, spread=5.0)
    fleet, again = (simulated_fleet(task, scenario, 3, differences=differences) for _ in range(2))
    _, model = drive(fleet, task.initial(), 25)
    fleet.drop([1, 2])
    fleet.rejoin([1])
    again.load_state_dict(fleet.state_dict())
    log, ended = drive(fleet, model, 30, version=25)
    log_again, ended_again = drive(again, model, 30, version=25)
    assert log == log_again
    assert torch.equal(ended, ended_again)


def drive(
    fleet: SimulatedFleet, model: Vector, turns: int, version: int = 0
) -> tuple[list[tuple[float, list[tuple[int, int]]]], Vector]:
    """Step on whatever arrives, by hand: what came when, and the model after it."""
    log = []
    for turn in range(turns):
        fleet.dispatch(model, version + turn, newcomers_only=False)
        events = fleet.next()
        for event in events:
            if isinstance(event, Arrival):
                model = model - LR * event.update
        log.append((fleet.now, [(event.client, getattr(event, "task", None)) for event in events]))
    return log, model


def test_clients_that_send_differences_send_the_same_gradients(task: tasks.Quadratic) -> None:
    plain, telling = (simulated_fleet(task, Scenario(spread=5.0), 0, differences=d) for d in (False, True))
    total = torch.zeros(N, DIM)
    model = task.initial()
    for version in range(60):
        for fleet in (plain, telling):
            fleet.dispatch(model, version, newcomers_only=False)
        (gradient,), (difference,) = plain.next(), telling.next()
        assert isinstance(gradient, Arrival)
        assert isinstance(difference, Arrival)
        assert (gradient.client, gradient.task) == (difference.client, difference.task)
        total[gradient.client] += difference.update
        torch.testing.assert_close(total[gradient.client], gradient.update, rtol=1e-4, atol=1e-5)
        model = model - LR * gradient.update


# --- order --------------------------------------------------------------------------------------------------------


def test_ties_break_by_order_of_dispatch_and_not_by_client(tmp_path: Path) -> None:
    """Client 0 takes 1, client 1 takes 2: at time 2 both arrive, and client 1 was sent its model first."""
    trace = tmp_path / "trace.csv"
    trace.write_text("client,duration\n0,1\n1,2\n")
    run = simulate(tasks.quadratic(2, 3), ASGD(), lr=LR, scenario=Scenario(trace=str(trace)), stop=Stop(arrivals=6))
    assert [event[:2] for event in events_of(run)] == [(1.0, 0), (2.0, 1), (2.0, 0), (3.0, 0), (4.0, 1), (4.0, 0)]


@pytest.mark.parametrize("clock", ["event", "tick"])
def test_equal_clients_take_turns(task: tasks.Quadratic, clock: str) -> None:
    run = run_of(task, Scenario(clock=clock, law="constant"), arrivals=5 * N)
    assert list(run.events["client"]) == list(range(N)) * 5


def test_ticks_are_whole_and_take_all_that_arrived(task: tasks.Quadratic) -> None:
    run = run_of(task, Scenario(clock="tick", delay=3.0))
    assert (run.events["time"] % 1 == 0).all()
    per_tick = run.events.groupby("time")["version"]
    assert (per_tick.nunique() == 1).all()  # one model for all that came in a tick, and one step
    assert list(per_tick.first()) == list(range(run.steps))
    assert per_tick.size().max() > 1


def test_no_arrival_before_its_time_and_time_never_runs_backwards(task: tasks.Quadratic) -> None:
    for clock in CLOCKS:
        run = run_of(task, Scenario(clock=clock, delay=2.0, spread=8.0))
        assert (run.events["time"].diff().dropna() >= 0).all()
        assert (run.events["trained_on"] <= run.events["version"]).all()
        assert (run.events["version"].diff().dropna() >= 0).all()


# --- concurrency ----------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.integers(1, N), st.sampled_from(["event", "tick"]), st.floats(1.0, 30.0))
def test_at_most_so_many_are_at_work_and_as_many_as_can(concurrency: int, clock: str, spread: float) -> None:
    task = tasks.quadratic(clients=N, dim=2, seed=0)
    fleet = simulated_fleet(task, Scenario(clock=clock, concurrency=concurrency, spread=spread), 1)
    model = task.initial()
    for version in range(40):
        fleet.dispatch(model, version, newcomers_only=False)
        busy = [client for _, _, client, _ in fleet.state_dict()["heap"]]
        assert len(busy) == len(set(busy)) == concurrency
        fleet.next()


@pytest.mark.parametrize("scenario", [Scenario(concurrency=1), Scenario(concurrency=4, spread=30.0)])
def test_every_client_takes_part(task: tasks.Quadratic, scenario: Scenario) -> None:
    """Finished clients go back among the idle. A client stays out of 600 fair draws with chance 12 * (11/12)^600."""
    run = run_of(task, scenario, arrivals=600)
    assert min(run.participation) > 0
    assert sum(run.participation) == run.arrivals


def test_equally_fast_clients_take_part_equally(task: tasks.Quadratic) -> None:
    """3 of 12 at work, 1,200 arrivals: 100 each; 5 standard deviations of a count that is at most binomial."""
    run = run_of(task, Scenario(concurrency=3), arrivals=1_200)
    assert max(abs(count - 100) for count in run.participation) < 5 * math.sqrt(1_200 * (1 / 12) * (11 / 12))


def test_one_client_at_a_time_is_never_stale(task: tasks.Quadratic) -> None:
    run = run_of(task, Scenario(concurrency=1))
    assert (run.events["version"] == run.events["trained_on"]).all()


# --- the first round ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [None, 5])
@pytest.mark.parametrize("clock", CLOCKS)
def test_nobody_gets_a_second_model_before_all_have_reported(
    task: tasks.Quadratic, clock: str, concurrency: int | None
) -> None:
    run = run_of(task, Scenario(clock=clock, spread=30.0, concurrency=concurrency), ACE(), arrivals=100)
    first_round = run.events.iloc[:N]
    assert sorted(first_round["client"]) == list(range(N))
    assert (first_round["trained_on"] == 0).all()
    steps_before = run.events["version"].iloc[N - 1]
    assert steps_before == 0
    assert run.events["version"].iloc[-1] > 0


# --- who leaves and comes back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [ASGD(), ACE()])
@pytest.mark.parametrize(("clock", "concurrency"), [("event", None), ("event", 5), ("tick", None), ("sampled", None)])
def test_who_drops_out_is_not_heard_of_until_it_rejoins(
    task: tasks.Quadratic, clock: str, concurrency: int | None, rule: ASGD | ACE
) -> None:
    arrivals = 300
    for rejoin_at in (None, 0.6):
        scenario = Scenario(
            clock=clock, spread=5.0, concurrency=concurrency, dropout=0.5, dropout_at=0.3, rejoin_at=rejoin_at
        )
        run = run_of(task, scenario, rule, arrivals=arrivals)
        leavers = set(dropouts(scenario, N, 4))
        assert len(leavers) == N // 2
        heard = [client in leavers for client in run.events["client"]]
        slack = N  # in a tick, several arrive before the share of the budget is looked at
        left, back = int(0.3 * arrivals) + slack, int((rejoin_at or 1.0) * arrivals)
        assert any(heard[: int(0.3 * arrivals)])
        assert not any(heard[left:back])
        assert any(heard[back:]) == (rejoin_at is not None)
        if rejoin_at is not None:  # what they were working on was lost: they come back with newer models
            returned = run.events[run.events["client"].isin(leavers)].iloc[sum(heard[:left]) :]
            at_return = run.events["version"].iloc[back]
            allowed = 0 if clock != "sampled" else at_return
            assert (returned["trained_on"] >= at_return - 1 - allowed).all()


@pytest.mark.parametrize("concurrency", [None, 3])
@pytest.mark.parametrize("clock", CLOCKS)
def test_nobody_waits_for_a_first_update_that_will_never_come(
    task: tasks.Quadratic, clock: str, concurrency: int | None
) -> None:
    """Half of the clients leave in the middle of the first round, some of them before they were sent anything."""
    scenario = Scenario(clock=clock, spread=30.0, concurrency=concurrency, dropout=0.5, dropout_at=0.01)
    run = run_of(task, scenario, ACE(), arrivals=200)
    assert run.arrivals >= 200
    assert run.steps > 0
    assert sum(count > 1 for count in run.participation) == N // 2


@pytest.mark.parametrize("clock", CLOCKS)
def test_everybody_who_leaves_is_reported_once_and_at_once(task: tasks.Quadratic, clock: str) -> None:
    fleet = simulated_fleet(task, Scenario(clock=clock, concurrency=None if clock == "sampled" else 8), 0)
    fleet.dispatch(task.initial(), 0, newcomers_only=True)
    idle = {event.client for event in fleet.next()}
    fleet.dispatch(task.initial(), 0, newcomers_only=True)
    now = fleet.now
    leavers = {client for client in range(N) if client % 2}
    fleet.drop(leavers)
    fleet.drop(leavers)
    events = fleet.next()
    lost = [event for event in events if isinstance(event, Lost)]
    assert fleet.now == now
    assert {event.client for event in events if isinstance(event, Left)} == leavers & idle
    assert {event.client for event in lost} == leavers - idle
    assert len({event.task for event in lost}) == len(lost)
    assert len(events) == len(leavers)
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    later = [event for _ in range(30) for event in turn(fleet, task)]
    assert all(isinstance(event, Arrival) and event.client not in leavers for event in later)


def turn(fleet: SimulatedFleet, task: tasks.Quadratic) -> list[Event]:
    events = fleet.next()
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    return events


def test_a_slot_is_free_at_once_when_its_client_drops_out(task: tasks.Quadratic) -> None:
    fleet = simulated_fleet(task, Scenario(concurrency=4), 0)
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    busy = {client for _, _, client, _ in fleet.state_dict()["heap"]}
    fleet.drop(busy)
    fleet.next()
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    now_busy = {client for _, _, client, _ in fleet.state_dict()["heap"]}
    assert len(now_busy) == 4
    assert not now_busy & busy


@pytest.mark.parametrize("clock", CLOCKS)
def test_an_empty_fleet_says_so_in_one_line(task: tasks.Quadratic, clock: str) -> None:
    fleet = simulated_fleet(task, Scenario(clock=clock), 0)
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    fleet.drop(range(N))
    fleet.next()
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    with pytest.raises(NothingInFlight, match="no client is at work and none can be sent work: 12 of 12 have") as error:
        fleet.next()
    assert "\n" not in str(error.value)
    fleet.rejoin(range(N))
    fleet.dispatch(task.initial(), 0, newcomers_only=False)
    assert all(isinstance(event, Arrival) for event in fleet.next())


# --- the sampled clock ----------------------------------------------------------------------------------------------


def sampled_ages(task: tasks.Quadratic, scenario: Scenario, arrivals: int) -> Iterator[tuple[int, int]]:
    """(client, staleness) once the history is as long as it gets."""
    fleet = simulated_fleet(task, scenario, 0)
    assert isinstance(fleet, SampledFleet)
    model = task.initial()
    for version in range(arrivals):
        fleet.dispatch(model, version, newcomers_only=False)
        (event,) = fleet.next()
        assert isinstance(event, Arrival)
        if version >= 100:
            yield event.client, event.staleness


def test_sampled_staleness_follows_the_delay_law() -> None:
    """Whole parts of exponential times of mean 4 are geometric. Chi-square over 12 cells; 5 standard deviations."""
    task = tasks.quadratic(clients=20, dim=1, noise=0.0, seed=0)
    ages = np.array([age for _, age in sampled_ages(task, Scenario(clock="sampled", delay=4.0), 2_500)])
    stay = math.exp(-1 / 4)
    expected = len(ages) * np.array([*(stay**k * (1 - stay) for k in range(11)), stay**11])
    observed = np.bincount(np.minimum(ages, 11), minlength=12)
    assert ((observed - expected) ** 2 / expected).sum() < 11 + 5 * math.sqrt(2 * 11)


def test_sampled_staleness_is_cut_once_in_a_thousand_draws_at_most() -> None:
    task = tasks.quadratic(clients=20, dim=1, noise=0.0, seed=0)
    scenario = Scenario(clock="sampled", delay=4.0, spread=5.0)
    fleet = simulated_fleet(task, scenario, 0)
    assert isinstance(fleet, SampledFleet)
    drawn = [int(fleet.durations.of(client, visit)) for client in range(20) for visit in range(1_000)]
    kept = len(longest_history(fleet, task))
    share = sum(age >= kept for age in drawn) / len(drawn)
    assert share < 0.01  # from 1,000 draws, the 0.999 quantile is known to within a factor of a few


def longest_history(fleet: SampledFleet, task: tasks.Quadratic) -> dict[str, Vector]:
    for version in range(400):
        fleet.dispatch(task.initial(), version, newcomers_only=False)
    history: dict[str, Vector] = fleet.state_dict()["history"]
    return history


def test_sampled_clients_come_in_proportion_to_their_speed() -> None:
    """Chi-square over 10 clients; 5 standard deviations."""
    task = tasks.quadratic(clients=10, dim=1, noise=0.0, seed=0)
    scenario = Scenario(clock="sampled", spread=8.0)
    counts = Counter(client for client, _ in sampled_ages(task, scenario, 2_500))
    speeds = np.array([1 / mean for mean in Durations(scenario, 10, 0).mean])
    expected = sum(counts.values()) * speeds / speeds.sum()
    observed = np.array([counts[client] for client in range(10)])
    assert ((observed - expected) ** 2 / expected).sum() < 9 + 5 * math.sqrt(2 * 9)


def test_a_sampled_update_is_computed_on_the_model_of_its_age(task: tasks.Quadratic) -> None:
    exact = tasks.quadratic(clients=N, dim=DIM, noise=0.0, seed=2)
    fleet = simulated_fleet(exact, Scenario(clock="sampled", delay=3.0), 0)
    models = [exact.initial() + version for version in range(40)]
    for version, model in enumerate(models):
        fleet.dispatch(model, version, newcomers_only=False)
        (event,) = fleet.next()
        assert isinstance(event, Arrival)
        expected = exact.updates(models[event.trained_on].unsqueeze(0), [event.client], [0])[0]
        torch.testing.assert_close(event.update, expected)
