"""When things happen: delay laws, speeds, traces, what staleness to expect, and settings that cannot matter."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from statistics import NormalDist, fmean, pstdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from acefl import ASGD, FedBuff, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.core.rule import Method
from acefl.core.types import Step
from acefl.fleets.scenario import LAWS, Durations, dropouts, fastest, read_trace, slowest
from acefl.runs.record import Run


def write_trace(path: Path, durations: list[list[float]]) -> str:
    rows = [f"{client},{duration}" for client, own in enumerate(durations) for duration in own]
    path.write_text("client,duration\n" + "\n".join(rows) + "\n")
    return str(path)


# --- delay laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "shape"),
    [
        ("constant", 0.0),
        ("exponential", 0.0),
        ("uniform", 0.0),
        ("lognormal", 0.3),
        ("lognormal", 1.0),
        ("pareto", 1.5),
        ("pareto", 3.0),
        ("two-speed", 10.0),
        ("two-speed", 0.5),
    ],
)
def test_every_law_has_mean_one(law: str, shape: float) -> None:
    function, _ = LAWS[law]
    mean, _ = quad(lambda u: function(u, shape), 0, 1, points=[0.1], limit=500)
    assert mean == pytest.approx(1.0, rel=1e-4)


def test_every_law_is_tested() -> None:
    assert set(LAWS) == {"constant", "exponential", "uniform", "lognormal", "pareto", "two-speed"}


@given(st.floats(1e-9, 1 - 1e-9))
def test_laws_are_the_inverses_of_their_distributions(u: float) -> None:
    """P(D > x) of a law that falls with u, P(D < x) of one that rises, is u at x = law(u)."""
    assert math.exp(-LAWS["exponential"][0](u, 0.0)) == pytest.approx(u)
    assert LAWS["uniform"][0](u, 0.0) / 2 == pytest.approx(u)
    x = LAWS["lognormal"][0](u, 0.7)
    assert NormalDist(-(0.7**2) / 2, 0.7).cdf(math.log(x)) == pytest.approx(u, rel=1e-6)
    assert ((1.5 - 1) / 1.5 / LAWS["pareto"][0](u, 1.5)) ** 1.5 == pytest.approx(u)


def test_one_task_in_ten_is_slow_under_two_speeds() -> None:
    law = LAWS["two-speed"][0]
    values = [law((k + 0.5) / 1000, 10.0) for k in range(1000)]
    assert max(values) / min(values) == pytest.approx(10.0)
    assert sum(value == max(values) for value in values) == 100


# --- speeds -----------------------------------------------------------------------------------------------------


def test_mean_times_grow_by_the_spread_from_first_to_last() -> None:
    n = 11
    means = Durations(Scenario(delay=2.0, spread=30.0), n, seed=0).mean
    assert means == pytest.approx([2.0 * 30.0 ** (i / (n - 1)) for i in range(n)])
    assert Durations(Scenario(delay=2.0, spread=30.0, fixed=5.0), n, 0).mean == pytest.approx([m + 5.0 for m in means])
    assert Durations(Scenario(delay=2.0, spread=30.0), 1, seed=0).mean == [2.0]


def test_random_slowness_permutes_the_speeds_by_the_seed() -> None:
    def means(slow: str, seed: int) -> list[float]:
        return Durations(Scenario(spread=30.0, slow=slow), 50, seed).mean

    assert sorted(means("random", 1)) == pytest.approx(means("last", 1))
    assert means("random", 1) == means("random", 1)
    assert means("random", 1) != means("random", 2)
    assert means("random", 1) != means("last", 1)


@pytest.mark.parametrize("law", ["constant", "exponential", "lognormal", "uniform", "two-speed"])
def test_task_times_have_the_mean_they_announce(law: str) -> None:
    """4,000 tasks of each client; 5 standard errors (false alarm 6e-7 a client). Pareto's variance is infinite."""
    durations = Durations(Scenario(law=law, delay=3.0, spread=4.0, fixed=0.5), 3, seed=0)
    for client, mean in enumerate(durations.mean):
        times = [durations.of(client, visit) for visit in range(4_000)]
        assert min(times) > 0.5
        assert abs(fmean(times) - mean) <= 5 * pstdev(times) / math.sqrt(len(times)) + 1e-9


@given(st.integers(0, 10**6), st.integers(0, 99), st.integers(0, 10**6))
def test_a_task_time_depends_on_seed_client_and_visit_alone(seed: int, client: int, visit: int) -> None:
    time = Durations(Scenario(spread=3.0), 100, seed).of(client, visit)
    again = Durations(Scenario(spread=3.0), 100, seed)
    again.of(0, 0)
    assert again.of(client, visit) == time
    others = {again.of(client, visit + 1), Durations(Scenario(spread=3.0), 100, seed + 1).of(client, visit)}
    assert time not in others


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40))
def test_slow_and_fast_fifths(mean_times: list[float]) -> None:
    for chosen, sign in ((slowest(mean_times), 1.0), (fastest(mean_times), -1.0)):
        others = [sign * time for client, time in enumerate(mean_times) if client not in chosen]
        assert len(set(chosen)) == max(1, round(0.2 * len(mean_times)))
        assert min(sign * mean_times[client] for client in chosen) >= max(others, default=-math.inf)


def test_ties_in_speed_go_to_the_ends() -> None:
    assert slowest([1.0] * 10) == [8, 9]
    assert fastest([1.0] * 10) == [0, 1]


# --- traces -----------------------------------------------------------------------------------------------------


def test_a_trace_gives_every_task_its_duration_again_and_again(tmp_path: Path) -> None:
    own = [[1.0, 2.5], [0.5], [3.0, 4.0, 5.0]]
    durations = Durations(Scenario(trace=write_trace(tmp_path / "t.csv", own)), 3, seed=0)
    assert [[durations.of(client, visit) for visit in range(6)] for client in range(3)] == [
        [1.0, 2.5, 1.0, 2.5, 1.0, 2.5],
        [0.5] * 6,
        [3.0, 4.0, 5.0, 3.0, 4.0, 5.0],
    ]
    assert durations.mean == [1.75, 0.5, 4.0]


def test_a_trace_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffduration,client,note\r\n2.5,0,first\r\n1e1,1,\r\n".encode())
    assert read_trace(path, 2) == [[2.5], [10.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has columns none; allowed: client,duration"),
        ("who,long\n0,1\n", "has columns who,long; allowed: client,duration"),
        ("client,duration\n0,1\n1,slow\n", "line 3: not a client number and a duration"),
        ("client,duration\n0,1\n1\n", "line 3: not a client number and a duration"),
        ("client,duration\n0.5,1\n", "line 2: not a client number"),
        ("client,duration\n0,1\n2,1\n", "line 3: client 2, .*allowed: clients 0 to 1"),
        ("client,duration\n-1,1\n", "line 2: client -1"),
        ("client,duration\n0,0\n", "line 2: .*duration 0.0.*above 0"),
        ("client,duration\n0,nan\n", "line 2: .*duration nan"),
        ("client,duration\n0,inf\n", "line 2: .*duration inf"),
        ("client,duration\n0,1\n", "no duration for client 1"),
    ],
)
def test_bad_traces_are_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message) as refusal:
        read_trace(path, 2)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_unreadable_traces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"client,duration\n\xff\xfe\n")
    for path in (tmp_path / "missing.csv", tmp_path, tmp_path / "t.csv"):
        with pytest.raises(InvalidInput, match=r"cannot read trace [^\[]*$"):
            read_trace(path, 2)


# --- what staleness to expect ---------------------------------------------------------------------------------------


def run_of(
    scenario: Scenario, rule: Method | None = None, *, clients: int = 30, arrivals: int = 2_000, **settings: Any
) -> Run:
    task = tasks.quadratic(clients=clients, dim=2, noise=0.1, seed=0)
    return simulate(
        task, rule or ASGD(), lr=1e-3, scenario=scenario, evaluations=1, **{"stop": Stop(arrivals=arrivals), **settings}
    )


def staleness(run: Run) -> np.ndarray:
    """Once the run is under way: the last two thirds of it."""
    values = (run.events["version"] - run.events["trained_on"]).to_numpy()
    return values[len(values) // 3 :]


@pytest.mark.parametrize(
    ("scenario", "buffer"),
    [
        (Scenario(), 1),
        (Scenario(spread=30.0), 1),
        (Scenario(delay=5.0, spread=10.0, concurrency=7), 1),
        (Scenario(spread=30.0), 5),
        (Scenario(clock="tick", delay=5.0), 1),
        (Scenario(clock="tick", delay=5.0, spread=10.0), 1),
        (Scenario(clock="tick", delay=2.0, spread=10.0, slow="random", fixed=1.5), 1),
        (Scenario(clock="tick", delay=30.0), 1),
        (Scenario(clock="tick", delay=5.0, spread=6.0, law="uniform"), 1),
        (Scenario(clock="tick", delay=3.0, spread=8.0, concurrency=10), 1),
        (Scenario(clock="tick", delay=5.0), 10),
        (Scenario(clock="sampled", delay=5.0), 1),
        (Scenario(clock="sampled", delay=2.0, spread=10.0), 1),
        (Scenario(clock="sampled", delay=5.0, law="two-speed"), 4),
    ],
)
def test_what_is_expected_is_what_is_measured(scenario: Scenario, buffer: int) -> None:
    """Within 12 % and a fifth of a step; over 1,300 correlated arrivals the mean itself is known to about 5 %."""
    expected = scenario.mean_staleness(30, buffer)
    measured = float(staleness(run_of(scenario, FedBuff(buffer=buffer))).mean())
    assert measured == pytest.approx(expected, rel=0.12, abs=0.2)
    assert f"about {expected:.3g} steps" in scenario.expectation(30, buffer)


def test_the_expectations_of_the_design() -> None:
    assert Scenario(clock="event").mean_staleness(100) == 99
    assert Scenario(clock="event", delay=30.0).mean_staleness(100) == 99
    assert Scenario(clock="event", concurrency=1).mean_staleness(100) == 0
    for clock in ("tick", "sampled"):
        assert Scenario(clock=clock, delay=5.0).mean_staleness(100) == pytest.approx(5.0, abs=0.6)
    assert "one step per 10 arrivals" in Scenario().expectation(100, 10)


def test_a_trace_says_what_to_expect_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    trace = write_trace(tmp_path / "t.csv", [draw.uniform(2, 8, size=15).tolist() for _ in range(20)])
    for clock in ("tick", "sampled"):
        scenario = Scenario(clock=clock, trace=trace, delay=100.0)
        assert scenario.mean_staleness(20) == pytest.approx(4.5, abs=0.3)
        measured = staleness(run_of(scenario, clients=20, arrivals=1_500)).mean()
        assert measured == pytest.approx(scenario.mean_staleness(20), rel=0.12)


def test_clients_that_never_differ_march_in_step() -> None:
    """Equal constant times: all arrive in the same tick, so nobody's work is ever stale."""
    scenario = Scenario(clock="tick", delay=5.0, law="constant")
    assert scenario.mean_staleness(30) == 0.0
    assert set(staleness(run_of(scenario, arrivals=300))) == {0}


# --- settings that cannot matter ------------------------------------------------------------------------------------

BASE = Scenario(delay=2.0, spread=4.0, fixed=0.5)


@pytest.mark.parametrize(
    ("base", "setting", "value", "named"),
    [
        (Scenario(delay=5.0), "delay", 30.0, "delay=30"),
        (Scenario(delay=5.0, spread=30.0), "delay", 30.0, "delay=30"),
        (Scenario(), "shape", 3.0, "shape=3"),
        (Scenario(), "slow", "random", "slow=random"),
        (Scenario(clock="sampled"), "concurrency", 3, "concurrency"),
        (Scenario(), "rejoin_at", 0.75, "rejoin_at=0.75"),
        (Scenario(), "dropout_at", 0.25, "dropout_at=0.25"),
    ],
)
def test_what_is_warned_about_does_not_matter_bit_for_bit(
    base: Scenario, setting: str, value: object, named: str
) -> None:
    changed = dataclasses.replace(base, **{setting: value})  # type: ignore[arg-type]
    assert any(named in line for line in changed.warnings())
    one, other = run_of(base, arrivals=300), run_of(changed, arrivals=300)
    assert torch.equal(one.model, other.model)
    assert one.events["client"].equals(other.events["client"])


@pytest.mark.parametrize(
    ("base", "setting", "value"),
    [
        (BASE, "delay", 30.0),
        (Scenario(clock="tick"), "delay", 5.0),
        (Scenario(clock="sampled"), "delay", 5.0),
        (Scenario(law="pareto"), "shape", 3.0),
        (BASE, "slow", "random"),
        (BASE, "spread", 8.0),
        (BASE, "fixed", 3.0),
        (BASE, "law", "uniform"),
        (BASE, "concurrency", 3),
        (BASE, "clock", "tick"),
        (Scenario(dropout=0.5), "dropout_at", 0.25),
        (Scenario(dropout=0.5), "rejoin_at", 0.75),
    ],
)
def test_what_is_not_warned_about_matters(base: Scenario, setting: str, value: object) -> None:
    changed = dataclasses.replace(base, **{setting: value})  # type: ignore[arg-type]
    assert not changed.warnings()
    assert not torch.equal(run_of(base, arrivals=300).model, run_of(changed, arrivals=300).model)


def test_beside_a_trace_nothing_else_matters(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [[1.0, 2.5], [0.7], [3.0]])
    plain, decorated = Scenario(trace=trace), Scenario(trace=trace, delay=9.0, spread=3.0, law="uniform", fixed=1.0)
    assert not plain.warnings()
    assert decorated.warnings() == [
        "delay=9.0, law=uniform, spread=3.0, fixed=1.0: no effect beside a trace, which gives every task's duration"
    ]
    assert torch.equal(run_of(plain, clients=3, arrivals=99).model, run_of(decorated, clients=3, arrivals=99).model)


def test_the_unit_of_time_matters_to_a_run_that_ends_by_time() -> None:
    five, thirty = Scenario(delay=5.0), Scenario(delay=30.0)
    assert not thirty.warnings(by_time=True)
    runs = [run_of(scenario, stop=Stop(time=60.0)) for scenario in (five, thirty)]
    assert runs[0].arrivals > 2 * runs[1].arrivals


# --- dropout and the end --------------------------------------------------------------------------------------------


@given(st.floats(0, 0.999), st.integers(1, 60), st.integers(0, 99))
def test_the_fraction_drops_out_and_somebody_stays(dropout: float, clients: int, seed: int) -> None:
    leavers = dropouts(Scenario(dropout=dropout), clients, seed)
    assert leavers == sorted(set(leavers))
    assert set(leavers) < set(range(clients))
    assert len(leavers) == min(round(dropout * clients), clients - 1)


def test_who_drops_out_depends_on_the_seed() -> None:
    choices = {tuple(dropouts(Scenario(dropout=0.3), 50, seed)) for seed in range(5)}
    assert len(choices) == 5


@pytest.mark.parametrize(
    ("stop", "reached"),
    [
        (Stop(arrivals=150), "arrivals"),
        (Stop(steps=40), "steps"),
        (Stop(time=7.0), "time"),
        (Stop(arrivals=150, steps=1_000, time=1e9), "arrivals"),
    ],
)
def test_a_run_ends_as_soon_as_a_limit_is_reached(stop: Stop, reached: str) -> None:
    run = run_of(Scenario(), FedBuff(buffer=3), stop=stop)
    limit = getattr(stop, reached)
    if reached == "time":
        assert run.events["time"].iloc[-2] < limit <= run.time
    else:
        assert getattr(run, reached) == limit
    assert run.arrivals == len(run.events)
    assert run.steps == run.arrivals // 3


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 500))
def test_the_budget_is_spent_by_whichever_limit_is_nearest(arrivals: int, steps: int, time: float) -> None:
    stop = Stop(arrivals=100, steps=50, time=25.0)
    assert stop.progress(Step(arrivals, steps, time, False)) == max(arrivals / 100, steps / 50, time / 25.0)


# --- bad settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clock": "wall"}, "clock is 'wall'; allowed: event, tick, sampled"),
        ({"law": "gamma"}, "law is 'gamma'; allowed: constant, exponential"),
        ({"slow": "middle"}, "slow is 'middle'; allowed: last, random, first"),
        ({"delay": -1.0}, "delay is -1.0; allowed"),
        ({"delay": 0.0}, "delay is 0.0; allowed"),
        ({"delay": math.nan}, "delay is nan; allowed"),
        ({"spread": 0.5}, "spread is 0.5; allowed: at least 1"),
        ({"spread": math.inf}, "spread is inf; allowed"),
        ({"fixed": -0.1}, "fixed is -0.1; allowed: at least 0"),
        ({"shape": 0.0}, "shape is 0.0; allowed"),
        ({"law": "pareto", "shape": 1.0}, "shape is 1.0; allowed for pareto: above 1"),
        ({"concurrency": 0}, "concurrency is 0; allowed: at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: from 0 to below 1"),
        ({"dropout": -0.1}, "dropout is -0.1; allowed"),
        ({"dropout_at": 1.5}, "dropout_at is 1.5; allowed: from 0 to 1"),
        ({"rejoin_at": 0.5}, r"rejoin_at is 0.5; allowed: above dropout_at \(0.5\), up to 1"),
    ],
)
def test_bad_scenarios_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Scenario(**settings)


def test_more_concurrency_than_clients_is_refused() -> None:
    with pytest.raises(InvalidInput, match="concurrency is 31; allowed: at most the number of clients, 30"):
        run_of(Scenario(concurrency=31))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "stop has no limit; allowed: arrivals, steps or time"),
        ({"arrivals": 0}, "stop arrivals is 0; allowed: a finite number above 0"),
        ({"arrivals": "many"}, "stop arrivals is 'many'; allowed: a finite number above 0"),
        ({"steps": -1}, "stop steps is -1; allowed: a finite number above 0"),
        ({"time": math.inf}, "stop time is inf; allowed"),
        ({"time": math.nan}, "stop time is nan; allowed"),
    ],
)
def test_bad_ends_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Stop(**settings)


# --- a trace in the record --------------------------------------------------------------------------------------


def test_durations_may_be_given_as_numbers(tmp_path: Path) -> None:
    own = [[1.5, 2.5], [0.75], [3.0, 4.0, 5.0]]
    read, given = Scenario(trace=write_trace(tmp_path / "t.csv", own)), Scenario(trace=own)
    assert Durations(given, 3, seed=0).trace == Durations(read, 3, seed=0).trace == own
    assert Durations(given, 3, seed=0).mean == Durations(read, 3, seed=0).mean


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ([[1.0], []], "trace has no duration for client 1"),
        ([[1.0], [0.0]], "trace: a duration of client 1 is 0.0"),
        ([[1.0], ["x"]], "the durations of client 1 are"),
        ([[1.0], 3.0], "the durations of client 1 are 3.0"),
    ],
)
def test_bad_durations_are_refused_by_client(durations: list[list[float]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Scenario(trace=durations)


def test_durations_must_be_those_of_the_tasks_clients() -> None:
    with pytest.raises(InvalidInput, match="trace is of 2 clients; allowed: the task's 3"):
        Durations(Scenario(trace=[[1.0], [2.0]]), 3, seed=0)
