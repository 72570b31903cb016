"""No run hangs, and none ends without saying why: a fuzz over methods, clocks, who is there, and budgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scenario_cases import Case, case

from acefl import ACE, FedAvg, InvalidInput, MaleniaSGD, RingleaderASGD, RingmasterASGD, Scenario, Stop, simulate, tasks
from acefl.core.errors import AceflError
from acefl.core.rule import Method
from acefl.core.types import Step
from acefl.runs.simulate import simulation

TURNS = 100_000  # more than any case takes, the patience with one that makes no step included


def how_it_ended(drawn: Case) -> str:
    """`done`, or the reason that the run itself gives; empty if there is none."""
    task = tasks.quadratic(clients=drawn.clients, dim=3, noise=drawn.noise, seed=1)
    settings = {"scenario": drawn.scenario, "stop": drawn.stop, "seed": drawn.number, "evaluations": 2}
    try:
        run = simulation(task, drawn.method, lr=0.05, **settings)  # type: ignore[arg-type]
        for turn, _ in enumerate(run.advance()):
            assert turn < TURNS, f"hangs at arrival {run.server.accepted}, step {run.server.version}: {drawn}"
    except AceflError as refused:
        return str(refused)
    if run.result().diverged:
        return "diverged"
    spent = drawn.stop.progress(Step(run.server.accepted, run.server.version, run.fleet.now, False))
    return "done" if spent >= 1.0 else str(run.config.get("ended", ""))


def check(numbers: range, folder: Path) -> None:
    for number in numbers:
        drawn = case(number, folder)
        reason = how_it_ended(drawn)
        assert reason, f"ends without saying why: {drawn}"
        assert "\n" not in reason, f"not one line: {reason!r}, {drawn}"


def test_no_run_hangs_or_ends_without_saying_why(tmp_path: Path) -> None:
    check(range(400), tmp_path)


@pytest.mark.slow
def test_nor_does_any_of_two_thousand(tmp_path: Path) -> None:
    check(range(400, 2_000), tmp_path)


WAITING: list[Method] = [RingleaderASGD(), MaleniaSGD(), FedAvg(), ACE()]


@pytest.mark.parametrize("method", WAITING, ids=repr)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(concurrency=2, dropout=0.5, dropout_at=0.3),
        Scenario(clock="tick", concurrency=2, dropout=0.5, dropout_at=0.3),
        Scenario(clock="sampled", delay=2.0, dropout=0.5, dropout_at=0.3),
    ],
    ids=lambda scenario: scenario.clock,
)
def test_nobody_waits_for_a_client_that_left_while_it_was_idle(method: Method, scenario: Scenario) -> None:
    if isinstance(method, FedAvg) and scenario.clock == "sampled":
        pytest.skip("rounds are refused under the sampled clock")
    task = tasks.quadratic(clients=6, dim=3)
    run = simulate(task, method, lr=0.05, scenario=scenario, stop=Stop(steps=30), evaluations=1)
    assert run.steps == 30
    assert "ended" not in run.config


@pytest.mark.parametrize("method", [MaleniaSGD(), RingmasterASGD(threshold=1)], ids=repr)
def test_a_method_that_gets_nothing_fresh_enough_ends_with_a_line_that_says_so(method: Method) -> None:
    """Under the sampled clock a constant delay of two steps never gives a gradient of the current model."""
    scenario = Scenario(clock="sampled", delay=2.0, law="constant")
    task = tasks.quadratic(clients=3, dim=3)
    run = simulate(task, method, lr=0.05, scenario=scenario, stop=Stop(steps=5), evaluations=1)
    assert run.steps == 1, "the first model is as old as any can be"
    assert "no step in the last 3,201 arrivals" in run.config["ended"]
    assert type(method).__name__ in run.config["ended"]
    counted = simulate(task, method, lr=0.05, scenario=scenario, stop=Stop(arrivals=50), evaluations=1)
    assert "ended" not in counted.config, "a budget of arrivals is spent"


def test_a_cohort_larger_than_the_federation_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="cohort is 5; allowed: at most the number of clients, 3"):
        simulate(tasks.quadratic(clients=3, dim=3), FedAvg(cohort=5), lr=0.1)
