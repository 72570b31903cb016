"""What is foretold: the right number of runs, a time where one can be told, and nothing of it in the results."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acefl import ACE, ASGD, FedBuff, Scenario, Stop
from acefl.cli import main
from acefl.studies import cost
from acefl.studies.compare import compare
from acefl.studies.spec import RunSpec
from acefl.studies.sweep import Grid, sweep
from acefl.studies.tune import tune
from acefl.tasks.base import Task
from acefl.tasks.sources import build_task

TASK = {"name": "quadratic", "clients": 5, "dim": 3}
PLAN = RunSpec(TASK, ASGD(), 0.1, Scenario(), Stop(arrivals=400), 0, watch=True)
SMALL: dict[str, Any] = {"stop": Stop(arrivals=20), "workers": 1}


def test_runs_are_counted_by_what_is_tuned_and_how_many_seeds() -> None:
    plans = [PLAN, replace(PLAN, rule=ACE())]
    said = cost.of_comparison(plans, 1, (0, 1, 2), 2)
    assert said.startswith("to do: 13 runs (at least 7 to find 1 learning rate, then 2 methods on 3 seeds), about ")
    assert " with 2 workers" in said
    assert cost.of_comparison([PLAN], 0, (0,), 1).startswith("to do: 1 run (1 method on 1 seed), about ")
    assert re.match(r"to do: a budget of 12 whole runs, about \d+ seconds? with 1 worker", cost.of_search(PLAN, 12, 1))


@pytest.mark.parametrize("stop", [Stop(arrivals=400), Stop(steps=40), Stop(time=50.0)])
def test_any_budget_is_timed(stop: Stop) -> None:
    arrivals, evaluation = cost.time_run(replace(PLAN, rule=FedBuff(), stop=stop))
    assert 0 < arrivals < 60
    assert 0 < evaluation < 60


def test_time_grows_with_the_budget_and_with_evaluations_and_many_of_them_are_told() -> None:
    said = [cost._sentence("2 runs", [(1.0, 0.1)], 2, looks, PLAN, 1) for looks in (5, 40)]
    assert said == [
        "to do: 2 runs, about 2 seconds with 1 worker",
        "to do: 2 runs, about 6 seconds with 1 worker, 67% of it evaluations",
    ]
    assert [cost._duration(seconds) for seconds in (0.2, 89, 90, 7_000, 300_000)] == [
        "1 second",
        "89 seconds",
        "1.5 minutes",
        "1.9 hours",
        "3.5 days",
    ]


def test_what_cannot_be_timed_is_counted_still() -> None:
    class Broken:
        def __call__(self, seed: int) -> Task:
            raise RuntimeError("no data")

    for task in (Broken(), {**TASK, "device": "cuda"}):
        assert all(map(math.isnan, cost.time_run(replace(PLAN, task=task))))
    assert cost.of_sweep([replace(PLAN, task=Broken())] * 3, 1) == "to do: 3 runs"


def test_studies_say_it_on_stderr_unless_silenced_and_their_results_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = compare(TASK, [ASGD()], lr=0.1, seeds=(0,), out=tmp_path / "told", **SMALL)
    assert capsys.readouterr().err.count("to do: 1 run ") == 1
    silent = compare(TASK, [ASGD()], lr=0.1, seeds=(0,), out=tmp_path / "silent", progress=False, **SMALL)
    assert capsys.readouterr().err == ""
    assert told.runs["ASGD"][0].model.equal(silent.runs["ASGD"][0].model)
    tune(TASK, ASGD(), budget=2.0, **SMALL)
    assert "to do: a budget of 2 whole runs" in capsys.readouterr().err
    grid = Grid.of({"lr": [0.05, 0.1], "task": TASK, "stop": {"arrivals": 20}})
    for said in ("to do: 2 runs", ""):  # nothing is left to do the second time
        sweep(grid, tmp_path / "sweep", workers=1)
        err = capsys.readouterr().err
        assert said in err
        assert bool(err) == bool(said)


def test_the_command_line_says_it_in_a_pipe_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--task", "quadratic", "--clients", "5", "--dim", "3", "--arrivals", "20", "--workers", "1"]
    assert main(["compare", *small, "--method", "ASGD", "--lr", "ASGD=0.1", "--seeds", "2"]) == 0
    said = capsys.readouterr()
    assert "to do: 2 runs (1 method on 2 seeds), about " in said.err
    assert "to do" not in said.out
    assert main(["compare", *small, "--lr", "fast"]) == 2
    assert "lr is 'fast'; allowed: a number, or NAME=X such as ACE=0.1" in capsys.readouterr().err
    assert main(["compare", *small, "--lr", "0.1", "--lr", "ACE=0.1"]) == 2
    assert "allowed: one for all, or NAME=X for each" in capsys.readouterr().err


def test_timing_leaves_the_task_as_it_was() -> None:
    task = build_task(TASK, 0)
    before = task.updates(task.initial().expand(2, -1), [0, 1], [5, 6])
    cost.time_run(PLAN)
    assert task.updates(task.initial().expand(2, -1), [0, 1], [5, 6]).equal(before)
