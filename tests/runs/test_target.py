"""Targets: a run ends at the first evaluation that reaches one, says so, and is resumed bit for bit."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import pytest
import torch
from tests.resumable import fingerprint

from acefl import ACE, ASGD, Every, FedBuff, InvalidInput, Run, Scenario, Stop, load, resume, simulate, tasks
from acefl.core.metrics import Reached
from acefl.runs.replay import ReplayFleet, Trace
from acefl.runs.simulate import simulation
from acefl.runs.training import Training
from acefl.tasks.base import Evaluation, Task

SETTINGS: dict[str, Any] = {"lr": 0.3, "scenario": Scenario(spread=5.0), "seed": 2, "evaluations": 20}
TARGETS = {"gap": 0.5, "grad_norm": 0.7}  # smaller is better
ACCURACY = 0.7
RULE = ASGD()


def quadratic() -> Task:
    return tasks.quadratic(clients=6, dim=4, noise=0.1, seed=1)


def made(task: Task, target: tuple[str, float] | None = None, rule: Any = RULE, **more: Any) -> Run:
    return simulate(task, rule, stop=Stop(arrivals=200, target=target), **{**SETTINGS, **more})


@pytest.fixture(scope="module")
def digits() -> Task:
    return tasks.digits(clients=6)


def check_prefix(whole: Run, ended: Run, metric: str, value: float, larger: bool) -> None:
    """The run with a target is the other one up to the first evaluation that reaches it."""
    values = whole.history[metric].to_list()
    first = next(i for i, found in enumerate(values) if (found >= value if larger else found <= value))
    assert 0 < first < len(values) - 1, "the target has to be reached on the way"
    assert ended.metrics == whole.metrics[: first + 1]
    row = whole.metrics[first]
    reached = Reached(row["time"], int(row["arrival"]), int(row["step"]))
    assert ended.time_to(metric, value) == whole.time_to(metric, value) == reached
    assert (ended.arrivals, ended.steps, ended.time) == (reached.arrivals, reached.steps, reached.time)
    sign = "≥" if larger else "≤"
    assert ended.config["ended"] == f"{metric} {sign} {value:g} was reached after {reached.arrivals:,} arrivals"
    assert ended.summary["target"] == {"metric": metric, "value": value, "reached": dataclasses.asdict(reached)}
    assert "ended" not in whole.config
    assert "target" not in whole.summary


@pytest.mark.parametrize("metric", TARGETS)
@pytest.mark.parametrize("rule", [ASGD(), ACE(), FedBuff(buffer=3)], ids=repr)
def test_a_run_ends_at_the_first_evaluation_that_is_small_enough(metric: str, rule: Any) -> None:
    whole = made(quadratic(), rule=rule)
    ended = made(quadratic(), (metric, TARGETS[metric]), rule=rule)
    check_prefix(whole, ended, metric, TARGETS[metric], larger=False)


def test_a_run_ends_at_the_first_evaluation_that_is_large_enough(digits: Task) -> None:
    whole, ended = made(digits), made(digits, ("accuracy", ACCURACY))
    check_prefix(whole, ended, "accuracy", ACCURACY, larger=True)
    by_clients = made(digits, ("heldout_slow_accuracy", 0.6))
    assert by_clients.final["heldout_slow_accuracy"] >= 0.6 > max(by_clients.history["heldout_slow_accuracy"][:-1])


def test_a_target_that_is_never_reached_changes_nothing_and_is_said(tmp_path: Path) -> None:
    whole, aimed = made(quadratic()), made(quadratic(), ("gap", -1.0))
    assert fingerprint(aimed) == fingerprint(whole)
    assert "ended" not in aimed.config
    assert aimed.time_to("gap", -1.0) is None
    aimed.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["target"]["reached"] is None


def test_what_is_there_at_the_start_takes_no_time() -> None:
    start = made(quadratic(), ("gap", 1e9))
    assert start.time_to("gap", 1e9) == Reached(0.0, 0, 0)
    assert (start.arrivals, len(start.metrics)) == (0, 1)


def test_a_record_answers_as_the_run_did(tmp_path: Path) -> None:
    run = made(quadratic(), ("gap", 0.5), out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.time_to("gap", 0.5) == run.time_to("gap", 0.5)
    assert again.time_to("client_loss", 1e9) == Reached(0.0, 0, 0)
    assert Stop(**again.config["stop"]) == Stop(arrivals=200, target=("gap", 0.5))


@pytest.mark.parametrize("back", [0, 1, 25])
def test_a_run_with_a_target_is_resumed_bit_for_bit(back: int) -> None:
    """Also when it was saved at the very turn that reached it, or at the one before."""
    stop = Stop(arrivals=200, target=("gap", 0.5))
    expected = made(quadratic(), stop.target)
    first = simulation(quadratic(), ASGD(), stop=stop, **SETTINGS)
    last = sum(1 for _ in first.advance()) - 1
    again = simulation(quadratic(), ASGD(), stop=stop, **SETTINGS)
    for turn, _ in enumerate(again.advance()):
        if turn == last - back:
            break
    rebuilt = simulation(quadratic(), ASGD(), stop=stop, **SETTINGS)
    rebuilt.load_state_dict(again.state_dict())
    run = rebuilt.complete()
    assert fingerprint(run) == fingerprint(expected)
    assert run.config["ended"] == expected.config["ended"]


class Stopped(Exception):
    pass


def test_an_interrupted_run_in_a_directory_keeps_its_target(tmp_path: Path) -> None:
    def stop(spent: float, *_: object) -> None:
        if spent > 0.02:
            raise Stopped

    with pytest.raises(Stopped):
        made(quadratic(), ("gap", 0.5), out=tmp_path / "run", checkpoint=Every(arrivals=2), progress=stop)
    run, expected = resume(tmp_path / "run"), made(quadratic(), ("gap", 0.5))
    assert fingerprint(run) == fingerprint(expected)
    assert run.summary["target"] == expected.summary["target"]


def test_a_metric_that_is_not_measured_is_named_before_any_work() -> None:
    class Counted(tasks.Quadratic):
        calls = 0

        def updates(self, *given: Any) -> torch.Tensor:
            self.calls += 1
            return super().updates(*given)

    task: Any = quadratic()
    task.__class__ = Counted
    with pytest.raises(InvalidInput, match="no metric 'accuracy' here; allowed: .*client_loss, .*gap, grad_norm"):
        made(task, ("accuracy", 0.9))
    assert task.calls == 0
    with pytest.raises(InvalidInput, match="no metric 'f1' here; allowed:"):
        made(quadratic()).time_to("f1", 0.9)


def test_a_task_of_ones_own_says_which_way_its_metrics_are_better() -> None:
    class Own(tasks.Quadratic):
        better: ClassVar[dict[str, str]] = {}

        def evaluate(self, model: torch.Tensor) -> Evaluation:
            found = super().evaluate(model)
            metrics = {**found.metrics, "closeness": -found.metrics["gap"]}
            return dataclasses.replace(found, metrics=metrics, better=self.better)

    task: Any = quadratic()
    task.__class__ = Own
    with pytest.raises(InvalidInput, match="which way 'closeness' is better is not known; a task declares it"):
        made(task, ("closeness", -0.5))
    task.better = {"closeness": "larger"}
    assert made(task, ("closeness", -0.5)).metrics[-1]["gap"] == made(quadratic(), ("gap", 0.5)).metrics[-1]["gap"]
    task.better = {"closeness": "up"}
    with pytest.raises(InvalidInput, match="better of closeness is 'up'; allowed: larger, smaller"):
        made(task)


@pytest.mark.parametrize(
    "target", ["accuracy", "accuracy=much", "=0.9", ("accuracy",), ("accuracy", math.nan), 0.9, ("accuracy", None)]
)
def test_what_is_no_target_is_refused_in_one_line(target: Any) -> None:
    with pytest.raises(InvalidInput, match="target is .*; allowed: a metric and a finite number, as in accuracy=0.9"):
        Stop(arrivals=3, target=target)


def test_a_target_is_no_limit_and_may_be_typed() -> None:
    with pytest.raises(InvalidInput, match="stop has no limit"):
        Stop(target=("accuracy", 0.9))
    typed: Any = "accuracy=0.9"
    assert Stop(steps=3, target=typed) == Stop(steps=3, target=("accuracy", 0.9))
    assert Stop(steps=3).record() == {"arrivals": None, "steps": 3, "time": None}


def test_a_replayed_run_ends_at_a_target_too() -> None:
    recorded = made(quadratic())
    trace = Trace.of(recorded)
    ended = Training(
        ASGD(),
        ReplayFleet(trace, quadratic(), SETTINGS["seed"]),
        lr=SETTINGS["lr"],
        stop=Stop(arrivals=trace.arrivals, target=("gap", 0.5)),
        config={"task": {}, "scenario": {"clock": "event"}},
        task=quadratic(),
        evaluations=20,
    ).complete()
    assert ended.time_to("gap", 0.5) == recorded.time_to("gap", 0.5)
    assert ended.arrivals < recorded.arrivals


def test_a_target_that_nobody_measured_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Where clients evaluate, only the end tells that none ever said it."""
    recorded = made(quadratic())
    trace = Trace.of(recorded)
    with caplog.at_level(logging.WARNING, "acefl"):
        Training(
            ASGD(),
            ReplayFleet(trace, quadratic(), SETTINGS["seed"]),
            lr=SETTINGS["lr"],
            stop=Stop(arrivals=trace.arrivals, target=("accuracy", 0.5)),
            config={"task": {}, "scenario": {"clock": "event"}},
            model=quadratic().initial(),
            evaluate=lambda model, version: Evaluation({"loss": 1.0}),
            evaluations=2,
        ).complete()
    assert "the target was never measured: no evaluation says accuracy" in caplog.text


def test_a_target_may_be_written_as_text_and_types_say_so() -> None:
    assert Stop(arrivals=9, target="gap=0.5") == Stop(arrivals=9, target=("gap", 0.5))
    assert str in get_args(get_type_hints(Stop)["target"])
