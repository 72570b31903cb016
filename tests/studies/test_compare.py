"""Many runs: the same numbers wherever they are made, everything recorded, nothing half-done."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import acefl
from acefl import ACE, ACED, ASGD, CA2FL, DelayAdaptiveASGD, FedBuff, InvalidInput, Scenario, Stop, tasks
from acefl.core.files import UNFINISHED
from acefl.core.rule import Method, Rule
from acefl.runs.record import run_name
from acefl.studies.compare import compare, search_rate
from acefl.studies.spec import (
    DEFAULT_SCENARIO,
    DEFAULT_SEEDS,
    DEFAULT_STOP,
    DEFAULT_TASK,
    PAPER_METHODS,
    TUNING_SEED,
)
from acefl.tasks import TorchTask
from acefl.tasks.sources import build_task

TASK = {"name": "quadratic", "clients": 6, "dim": 3, "noise": 0.1}
METHODS = (ACE(), FedBuff(buffer=3))
SMALL: dict[str, Any] = {"scenario": Scenario(spread=5.0), "stop": Stop(arrivals=40), "evaluations": 3}
TIMINGS = ("wall_seconds", "machine")


def small(out: Path, task: Any = TASK, methods: Any = METHODS, **settings: Any) -> Any:
    return compare(task, methods, out=out, **{**SMALL, "seeds": (0, 1), "workers": 1, **settings})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("compare") / "one")


def content_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "compare.json").read_text())
    return content


def test_one_worker_and_two_give_the_same_numbers(compared: Path, tmp_path: Path) -> None:
    same_numbers(compared, small(tmp_path / "two", workers=2))


def same_numbers(compared: Path, parallel: Path) -> None:
    one, two = content_of(compared), content_of(parallel)
    for name in TIMINGS:
        del one[name], two[name]
    assert one == two
    for method in one["methods"]:
        for run in method["runs"]:
            here, there = acefl.load(compared / run), acefl.load(parallel / run)
            assert torch.equal(here.model, there.model)
            assert here.metrics == there.metrics
            assert here.config == there.config
            pd.testing.assert_frame_equal(here.events, there.events)


def test_everything_is_recorded(compared: Path) -> None:
    content = content_of(compared)
    assert content["task"] == {**TASK, "client_work": tasks.quadratic().describe()["client_work"]}
    assert content["objective"] == "gap"
    assert Scenario(**content["scenario"]) == SMALL["scenario"]
    assert Stop(**content["stop"]) == SMALL["stop"]
    assert content["seeds"] == [0, 1]
    assert [method["label"] for method in content["methods"]] == ["ACE", "FedBuff(buffer=3)"]
    for method in content["methods"]:
        scores = {trial["lr"]: trial["score"] for trial in method["tuning"]}
        assert len(scores) >= 7
        assert method["lr"] == min(scores, key=lambda rate: (scores[rate], rate))
        for seed, path in enumerate(method["runs"]):
            run = acefl.load(compared / path)
            assert (run.config["label"], run.config["lr"], run.config["seed"]) == (method["label"], method["lr"], seed)
            assert run.config["task"]["seed"] == seed
            assert len(run.history) == 4
    assert (compared / "report.html").stat().st_size > 0


def test_rates_are_tuned_on_a_seed_that_is_not_reported(compared: Path) -> None:
    tuning = content_of(compared)["methods"][0]["tuning"]
    for trial in tuning[:2]:
        task = build_task(TASK, TUNING_SEED)
        run = acefl.simulate(
            task, ACE(), lr=trial["lr"], scenario=SMALL["scenario"], stop=SMALL["stop"], seed=TUNING_SEED
        )
        assert run.final["gap"] == trial["score"]
    search = search_rate(TASK, ACE(), scenario=SMALL["scenario"], stop=SMALL["stop"], workers=1)
    assert sorted(search.scores.items()) == [(trial["lr"], trial["score"]) for trial in tuning]


def test_a_given_rate_is_not_tuned(tmp_path: Path) -> None:
    methods = content_of(small(tmp_path / "given", lr=0.05, seeds=(3,)))["methods"]
    assert [(method["lr"], method["tuning"]) for method in methods] == [(0.05, []), (0.05, [])]


def test_a_rate_may_be_given_for_some_methods_by_label_or_name(tmp_path: Path) -> None:
    three = [ACE(), FedBuff(buffer=3), FedBuff(buffer=2)]
    rates = {"FedBuff": 0.3, "FedBuff(buffer=2)": 0.2}
    methods = content_of(small(tmp_path / "some", methods=three, lr=rates, seeds=(3,)))["methods"]
    assert [method["lr"] for method in methods[1:]] == [0.3, 0.2]
    assert [bool(method["tuning"]) for method in methods] == [True, False, False]
    whole = content_of(small(tmp_path / "all", methods=[ACE()], seeds=(3,)))["methods"]
    assert methods[0]["tuning"] == whole[0]["tuning"]


class Stopped(BaseException):
    """Like Ctrl-C."""


@pytest.mark.parametrize("after", [1, 6, 15])
def test_what_was_interrupted_goes_on_to_the_same_end(after: int, compared: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    def stop(done: float, known: float, last: str) -> None:
        heard.append(last)
        if len(heard) == after + 1:
            raise Stopped

    out = tmp_path / "out"
    with pytest.raises(Stopped):
        small(out, progress=stop)
    assert [path.name for path in out.iterdir()] == [UNFINISHED]
    with pytest.raises(InvalidInput, match="holds the comparison of other settings, such as stop"):
        small(out, stop=Stop(arrivals=41))
    with pytest.raises(InvalidInput, match="holds an interrupted comparison"):
        acefl.simulate(build_task(TASK, 0), ACE(), lr=0.1, out=out)
    again: list[tuple[float, float, str]] = []
    small(out, progress=lambda *state: again.append(state))
    assert again[0][0] == after
    assert not set(heard[1:]) & {last for _, _, last in again}
    same_numbers(compared, out)
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "report.html", "runs"]


def test_a_kill_loses_only_what_was_under_way(compared: Path, tmp_path: Path) -> None:
    """Killed with its workers, just when a run has landed."""
    out = tmp_path / "killed"
    script = "import sys; from tests.studies.test_compare import small; small(sys.argv[1], workers=2)"
    child = subprocess.Popen([sys.executable, "-c", script, str(out)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while not list(out.glob(f"{UNFINISHED}/runs/[!.]*/summary.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert (out / UNFINISHED).exists()
    told: list[tuple[float, float, str]] = []
    small(out, progress=lambda *state: told.append(state))
    assert told[0][0] >= 8  # a search of seven rates, and a run
    same_numbers(compared, out)


def test_a_finished_comparison_stays_until_the_next_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    small(out, lr=0.05, seeds=(0,))

    def stop(done: float, known: float, last: str) -> None:
        if done == 1:
            raise Stopped

    with pytest.raises(Stopped):
        small(out, lr=0.1, seeds=(0,), progress=stop)
    assert content_of(out)["methods"][0]["lr"] == acefl.load(out).runs["ACE"][0].config["lr"] == 0.05
    (tmp_path / ".out-replaced").mkdir()  # killed between the two steps by which the new one takes its place
    for path in out.iterdir():
        path.rename(tmp_path / ".out-replaced" / path.name)
    out.rmdir()
    small(out, lr=0.1, seeds=(0,))
    assert content_of(out)["methods"][0]["lr"] == 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_processes_do_not_write_one_comparison(tmp_path: Path) -> None:
    def second(done: float, known: float, last: str) -> None:
        with pytest.raises(InvalidInput, match="is being written by another run"):
            small(tmp_path / "out")
        raise Stopped

    with pytest.raises(Stopped):
        small(tmp_path / "out", progress=second)
    assert list(tmp_path.iterdir()) == []


def test_a_rate_that_diverges_scores_nothing(tmp_path: Path) -> None:
    out = small(tmp_path / "wild", methods=[ASGD()], lr_centre=64.0, seeds=(0,), stop=Stop(arrivals=400))
    (method,) = content_of(out)["methods"]
    assert method["tuning"][-1]["score"] is None
    assert not acefl.load(out / method["runs"][0]).diverged


class OwnData:
    """Somebody's own task by seed; counts how often the data are loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __call__(self, seed: int) -> TorchTask:
        self.loaded.append(seed)
        draw = torch.Generator().manual_seed(seed)
        clients = [(torch.randn(6, 2, generator=draw), torch.randn(6, 1, generator=draw)) for _ in range(4)]
        torch.manual_seed(seed)
        return TorchTask(nn.Linear(2, 1), nn.MSELoss(), clients, compute="one-by-one", description={"name": "own"})


def test_a_callable_task_is_compared_too_and_its_data_loaded_once_per_seed(tmp_path: Path) -> None:
    own = OwnData()
    content = content_of(small(tmp_path / "own", own, [ASGD()], workers=2))
    assert content["task"]["name"] == "own"
    assert content["objective"] == "client_loss"
    assert sorted(own.loaded) == [0, 1, TUNING_SEED]
    with pytest.raises(InvalidInput, match="task is TorchTask; allowed: settings, or what builds one by seed"):
        small(tmp_path / "instance", own(0), [ASGD()])


class Plain(Method):
    """A rule of somebody's own that is no dataclass: its settings are not known."""

    def build(self, clients: int, like: torch.Tensor, samples: Sequence[int] | None = None) -> Rule:
        return ASGD().build(clients, like, samples)


def test_a_rule_of_ones_own_is_compared_too(tmp_path: Path) -> None:
    (method,) = content_of(small(tmp_path / "own", methods=[Plain()], lr=0.1, seeds=(0,)))["methods"]
    assert (method["label"], method["rule"]) == ("Plain", {})


def test_progress_counts_every_job_and_ends_complete(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    small(tmp_path / "seen", methods=[ACE()], progress=lambda *state: seen.append(state))
    done = [state[0] for state in seen]
    assert done == list(range(len(seen)))
    assert seen[-1][0] == seen[-1][1] >= 7 + 2
    assert all(before <= after for (_, before, _), (_, after, _) in pairwise(seen))
    assert "ACE: tried lr" in seen[1][2]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failing_job_leaves_nothing_behind(tmp_path: Path, workers: int) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,duration\n0,1\n")
    with pytest.raises(InvalidInput, match="no duration for client 1"):
        small(tmp_path / "deep" / "failed", scenario=Scenario(trace=str(trace)), workers=workers)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_threads_are_given_back(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        small(tmp_path / "threads", lr=0.1, seeds=(0,))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": []}, "methods is empty"),
        ({"methods": [ACE(), ACE()]}, "method ACE is given twice"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 1]}, r"seeds are \[1, 1\]; allowed: each once"),
        ({"seeds": [TUNING_SEED]}, f"seed {TUNING_SEED} is kept for tuning"),
        ({"lr": 0.0}, "lr is 0.0; allowed"),
        ({"lr": {"ACE": -1.0}}, "lr of ACE is -1.0; allowed"),
        ({"lr": {"ACED": 1.0}}, "lr is given for ACED, which is not compared; allowed: ACE, FedBuff"),
        ({"lr_centre": -1.0}, "lr_centre is -1.0; allowed"),
        ({"evaluations": 0}, "evaluations is 0; allowed"),
        ({"workers": 0}, "workers is 0; allowed: at least 1"),
        ({"scenario": Scenario(concurrency=7)}, "concurrency is 7; allowed: at most the number of clients, 6"),
        ({"task": {"name": "nobody"}}, "unknown task 'nobody'"),
        ({"task": {"name": "quadratic", "colour": [1]}}, "task quadratic: .*colour"),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_written(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        small(tmp_path / "out", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_described_task_is_built_once() -> None:
    assert build_task(TASK, 3) is build_task(dict(reversed(TASK.items())), 3)
    assert build_task(TASK, 3) is not build_task(TASK, 4)
    assert isinstance(build_task(TASK, 3), tasks.Quadratic)


@pytest.mark.parametrize("name", ["ACE", "ACED(tau=300)", "ACE(home='/tmp/a b', table=\"int8\")", "日本"])
def test_run_names_are_safe_in_shells_and_addresses(name: str) -> None:
    made = run_name(name, 7)
    assert made.endswith("-seed7")
    assert not set(made) & set(" /\\()'\"&?*$")


def test_the_embedded_default_is_the_one_the_paper_is_about() -> None:
    assert DEFAULT_TASK == {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax"}
    assert Scenario(clock="event", delay=1.0, spread=30.0, slow="last") == DEFAULT_SCENARIO
    assert Stop(arrivals=10_000) == DEFAULT_STOP
    assert DEFAULT_SEEDS == (0, 1, 2)
    assert {type(rule) for rule in PAPER_METHODS} == {ACE, ACED, CA2FL, FedBuff, ASGD, DelayAdaptiveASGD}
    assert not DEFAULT_SCENARIO.warnings()
    assert math.isclose(DEFAULT_SCENARIO.mean_staleness(100), 99)
