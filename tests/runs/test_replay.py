"""A record drives the simulator: its own method gives its own model back, and another one sees the same arrivals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, FedFa, InvalidInput, Run, Scenario, Stop, load, simulate, tasks
from acefl.core.files import read_json
from acefl.core.gate import NormLimit
from acefl.core.optimizers import Momentum
from acefl.core.rule import Method
from acefl.core.schedules import Cosine, Schedule, Sqrt
from acefl.core.types import Step
from acefl.rules import FADAS, RingleaderASGD
from acefl.runs.evaluation import Evaluator
from acefl.runs.replay import Trace, replay
from acefl.studies.replay import compare
from acefl.tasks.base import Evaluation, Task

RULES = [
    *(ACE(), ACE(warmup="seen"), ACE(variant="client-held"), ACED(tau=5)),
    *(CA2FL(buffer=4), FedBuff(buffer=4), ASGD(), FedFa(window=3)),
]
SCENARIOS = [
    Scenario(spread=10.0),
    Scenario(clock="tick", delay=3.0, spread=4.0),
    Scenario(spread=3.0, concurrency=3),
    Scenario(law="constant", spread=2.0),
    Scenario(clock="sampled", delay=3.0),
]


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.quadratic(clients=8, dim=12, heterogeneity=2.0, noise=0.5, seed=2)


def made(task: Task, rule: Method, scenario: Scenario) -> Run:
    return simulate(task, rule, lr=0.05, scenario=scenario, stop=Stop(arrivals=150), seed=4, evaluations=5)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_runs_own_method_gives_its_own_model_back(task: Task, rule: Method, scenario: Scenario) -> None:
    recorded = made(task, rule, scenario)
    again = replay(recorded, rule)
    assert torch.equal(again.model, recorded.model)
    assert again.steps == recorded.steps
    assert again.participation == recorded.participation
    columns = ["time", "client", "trained_on", "version", "accepted"]
    pd.testing.assert_frame_equal(again.events[columns], recorded.events[columns], check_dtype=False)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": Momentum(0.5)},
        {"schedule": Cosine(warmup=0.2)},
        {"norm_limit": NormLimit(factor=1.0, action="clip", history=2)},
        {"norm_limit": NormLimit(factor=1.5, history=2)},
    ],
    ids=repr,
)
def test_the_server_does_beside_its_method_what_it_did(task: Task, given: dict[str, Any], tmp_path: Path) -> None:
    recorded = simulate(task, ASGD(), lr=0.05, stop=Stop(arrivals=150), seed=4, evaluations=1, **given)
    plain = simulate(task, ASGD(), lr=0.05, stop=Stop(arrivals=150), seed=4, evaluations=1)
    assert not torch.equal(recorded.model, plain.model)
    recorded.save(tmp_path / "run")
    assert torch.equal(replay(tmp_path / "run", ASGD()).model, recorded.model)
    for other in (FADAS(buffer=3), FedFa(window=3), ACE(variant="client-held")):  # which cannot have all of these
        assert replay(recorded, other).steps


@pytest.mark.parametrize("schedule", [Cosine(warmup=0.2), Sqrt()], ids=repr)
@pytest.mark.parametrize(
    "stop",
    [Stop(steps=40), Stop(steps=90, time=12.0), Stop(steps=400, target=("gap", 4.0))],
    ids=["steps", "time", "target"],
)
@pytest.mark.parametrize("rule", [ACE(), FedBuff(buffer=3), FedFa(window=3)], ids=repr)
@pytest.mark.parametrize("clock", ["event", "tick"])
def test_a_schedule_goes_by_the_budget_of_the_run_whatever_that_counts(
    task: Task, clock: str, rule: Method, stop: Stop, schedule: Schedule
) -> None:
    scenario = Scenario(clock=clock, delay=2.0, spread=4.0)
    recorded = simulate(task, rule, lr=0.05, scenario=scenario, stop=stop, seed=4, evaluations=20, schedule=schedule)
    again = replay(recorded, rule)
    assert torch.equal(again.model, recorded.model)
    assert torch.equal(replay(again, rule).model, recorded.model)
    assert "ended" not in again.config


def test_a_schedule_goes_by_that_budget_wherever_the_rows_are_kept(task: Task, tmp_path: Path) -> None:
    recorded = simulate(task, ACE(), lr=0.05, stop=Stop(steps=40), seed=4, evaluations=1, schedule=Cosine())
    assert torch.equal(replay(recorded, ACE(home=tmp_path / "table.bin")).model, recorded.model)


@pytest.mark.parametrize("rejoin_at", [None, 0.6])
@pytest.mark.parametrize("dropout_at", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("rule", [ACE(), ACED(tau=5), RingleaderASGD(), CA2FL(buffer=4)], ids=repr)
def test_who_dropped_out_under_the_sampled_clock_is_not_waited_for(
    task: Task, rule: Method, dropout_at: float, rejoin_at: float | None
) -> None:
    scenario = Scenario(clock="sampled", delay=4.0, spread=8.0, dropout=0.4, dropout_at=dropout_at, rejoin_at=rejoin_at)
    recorded = made(task, rule, scenario)
    again = replay(recorded, rule)
    assert again.steps == recorded.steps
    assert torch.equal(again.model, recorded.model)
    assert torch.equal(replay(again, rule).model, recorded.model)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_replay_of_a_replay_is_the_replay(task: Task, rule: Method) -> None:
    """The second time by the times at which tasks were sent, which records of federations hold."""
    first = replay(made(task, ASGD(), SCENARIOS[0]), rule)
    assert "sent" in first.events
    assert torch.equal(replay(first, rule).model, first.model)


def test_a_replay_is_judged_as_the_run_was() -> None:
    """All of a run's scores, held-out ones too; its slow and fast are those of the times that tasks really took."""
    recorded = made(tasks.digits(clients=8), ACE(), Scenario(spread=30.0, law="constant"))
    again = replay(recorded, ACE(), evaluations=5)
    assert set(recorded.final) <= set(again.final)
    assert {name: again.final[name] for name in recorded.final} == pytest.approx(recorded.final)
    scores = ["accuracy", "loss", "heldout_accuracy", "heldout_loss"]
    here, there = (pd.DataFrame(run.clients)[scores] for run in (again, recorded))
    pd.testing.assert_frame_equal(here, there)


def test_clients_without_a_score_are_left_out_of_means_and_counted() -> None:
    found = Evaluation(
        {},
        client_loss=torch.tensor([1.0, 2.0, math.nan]),
        heldout_accuracy=torch.tensor([math.nan, 0.5, math.nan]),
        answered=frozenset((0, 1)),
    )
    row = Evaluator(None, 1, lambda: [1.0, 2.0, 3.0], background=False).add(Step(0, 0, 0.0, False), found)
    assert (row["fast_loss"], row["worst_loss"], row["unscored_clients"]) == (1.0, 2.0, 1)
    assert math.isnan(row["slow_loss"])
    assert (row["heldout_worst_accuracy"], row["heldout_unscored_clients"]) == (0.5, 2)


def test_another_method_sees_the_same_clients_at_the_same_times(task: Task) -> None:
    recorded = made(task, FedBuff(buffer=5), SCENARIOS[0])
    other = replay(recorded, ASGD())
    assert list(other.events["client"]) == list(recorded.events["client"])
    assert list(other.events["time"]) == list(recorded.events["time"])
    assert other.steps == recorded.arrivals == 5 * recorded.steps
    staleness = (other.events["version"] - other.events["trained_on"]).mean()
    assert staleness == pytest.approx(7, rel=0.2), "eight clients, always busy: seven others arrive in between"


def test_a_real_federations_record_is_replayed_on_a_stand_in(task: Task) -> None:
    recorded = made(task, ACE(), SCENARIOS[0])
    recorded.config["task"] = {"name": "hospital scans"}
    with pytest.raises(InvalidInput, match="'hospital scans', is not one acefl can build.*stand-in"):
        replay(recorded, ACED(tau=5))
    other = tasks.quadratic(clients=8, dim=3, seed=0)
    assert replay(recorded, ACED(tau=5), task=other).model.shape == (3,)
    with pytest.raises(InvalidInput, match="the task has 5 clients; allowed: the run's 8"):
        replay(recorded, ACED(tau=5), task=tasks.quadratic(clients=5, dim=3, seed=0))


def test_refused_arrivals_are_left_out_and_a_line_says_so(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    recorded = made(task, ASGD(), SCENARIOS[0])
    whole = Trace.of(recorded)
    assert not caplog.records
    recorded.events.loc[10, ["accepted", "reason"]] = [False, "non-finite"]
    assert Trace.of(recorded).arrivals == whole.arrivals - 1
    assert "what it did about 1 refused updates is not replayed" in caplog.text
    recorded.events["accepted"] = False
    with pytest.raises(InvalidInput, match="no accepted arrivals"):
        Trace.of(recorded)


def test_a_comparison_of_replays_is_recorded_with_its_report(task: Task, tmp_path: Path) -> None:
    made(task, ASGD(), SCENARIOS[0]).save(tmp_path / "run")
    compare(tmp_path / "run", [ACE(), ACED(tau=5)], out=tmp_path / "out", evaluations=4)
    content = read_json(tmp_path / "out" / "compare.json")
    assert [entry["label"] for entry in content["methods"]] == ["ACE", "ACED(tau=5)"]
    for entry in content["methods"]:
        assert load(tmp_path / "out" / entry["runs"][0]).arrivals == 150
    assert "ACED(tau=5)" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_the_command_prints_the_table_and_writes_the_report(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from acefl.cli import main

    made(task, ASGD(), SCENARIOS[0]).save(tmp_path / "run")
    run, out = str(tmp_path / "run"), tmp_path / "out"
    assert main(["replay", run, "--method", "ACE", "--method", "ACED(tau=5)", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in printed["summary"]} == {"ACE", "ACED(tau=5)"}
    assert (out / "report.html").exists()
    stand_in = ["--task", "quadratic", "--dim", "3", "--lr", "0.1"]
    assert main(["replay", run, "--method", "ACE", *stand_in, "--out", str(out)]) == 0
    assert load(out / "runs" / "ACE-seed4").model.shape == (3,)
    assert main(["replay", str(tmp_path / "nothing"), "--method", "ACE", "--out", str(out)]) == 2
    assert "config.json: missing" in capsys.readouterr().err
