"""Tasks of people's own by name: wherever a task is named, in workers too, in records, and never imported from one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import acefl
from acefl import ACE, ASGD, Every, InvalidInput, Stop
from acefl.cli import main
from acefl.studies.compare import compare
from acefl.tasks.sources import build_task, parse_task

MODULE = """
import torch
from torch import nn
from acefl import tasks

def make_task(batch=4, seed=0, clients=4):
    draw = torch.Generator().manual_seed(seed)
    data = [(torch.randn(6, 2, generator=draw), torch.randn(6, 1, generator=draw)) for _ in range(clients)]
    torch.manual_seed(seed)
    return tasks.TorchTask(nn.Linear(2, 1), nn.MSELoss(), data, batch=batch, compute="one-by-one")

def unseeded():
    return make_task()

def nothing():
    return 3

NUMBER = 3
"""
NAME = "owntasks.mine:make_task(batch=3)"
TINY = ["--arrivals", "40", "--spread", "3"]


@pytest.fixture(autouse=True)
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in the current directory, which is not on the path yet; forgotten again afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("owntasks").mkdir()
    Path("owntasks/__init__.py").touch()
    Path("owntasks/mine.py").write_text(MODULE)
    yield
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "owntasks"]:
        del sys.modules[name]


def test_the_seed_is_passed_if_the_function_takes_one() -> None:
    assert not build_task(NAME, 0).initial().equal(build_task(NAME, 1).initial())
    assert build_task("owntasks.mine:unseeded", 0).initial().equal(build_task("owntasks.mine:unseeded", 1).initial())
    assert build_task(NAME, 3) is build_task({"batch": 3, "name": "owntasks.mine:make_task"}, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("owntasks.nowhere:make", "cannot import owntasks.nowhere: ModuleNotFoundError"),
        ("owntasks.mine:other", "owntasks.mine has no 'other'"),
        ("owntasks.mine:NUMBER", "is not a function; allowed: one that makes a task"),
        ("owntasks.mine:nothing", "made a int; allowed: a task"),
        ("owntasks.mine:make_task(colour=1)", "allowed: batch, seed, clients"),
        ("owntasks.mine:make_task(seed=1)", "is given a seed"),
        ("owntasks.mine:make_task(1)", "allowed: a module, a colon and a name"),
    ],
)
def test_what_is_no_task_is_said_in_one_line(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(")):
        build_task(text, 0)
    assert main(["run", *TINY, "--lr", "0.1", "--task", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_is_compared_in_worker_processes_too_and_recorded(workers: str) -> None:
    asked = ["compare", "--task", NAME, *TINY, "--method", "ASGD", "--lr", "0.1", "--seeds", "1", "--workers", workers]
    assert main([*asked, "--out", "mine"]) == 0
    content = json.loads(Path("mine/compare.json").read_text())
    assert content["task"]["imported_from"] == "owntasks.mine:make_task(batch=3)"
    assert content["task"]["batch"] == 3
    run = acefl.load("mine/" + content["methods"][0]["runs"][0])
    scenario = acefl.Scenario(**run.config["scenario"])
    plain = acefl.simulate(build_task(NAME, 0)._task, ASGD(), lr=0.1, scenario=scenario, stop=Stop(arrivals=40), seed=0)
    assert plain.model.equal(run.model)
    assert main(["report", "mine"]) == 0


def test_options_are_settings_of_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "--task", "owntasks.mine:make_task", *TINY, "--lr", "0.1", "--json"]
    assert main([*asked, "--clients", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 3
    assert main([*asked, "--alpha", "1"]) == 2
    assert "allowed: batch, seed, clients" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["tune", "--budget", "1.75", "--workers", "1", "--out", "found"],
        ["diagnose", "--part", "terms", "--method", "ASGD", "--lr", "0.1", "--workers", "1", "--out", "found"],
    ],
    ids=lambda command: command[0],
)
def test_other_studies_take_it(command: list[str]) -> None:
    assert main([*command, "--task", NAME, *TINY]) == 0
    assert main(["report", "found"]) == 0


def test_a_sweep_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["--vary", "lr=0.1", "--vary", "task.batch=2,3", "--vary", "stop.arrivals=20", "--workers", "2", "--json"]
    assert main(["sweep", *vary, "--vary", "task.name=owntasks.mine:make_task"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2
    assert main(["sweep", "--vary", f"task={NAME},quadratic(clients=3)", *vary[:2], *vary[4:], "--out", "two"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2
    assert main(["sweep", *vary, "--vary", "task.name=owntasks.mine:other", "--out", "none"]) == 2
    assert not Path("none").exists()


def test_a_leaderboard_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--method", "ASGD", "--method", "ACE", "--only", "--quick", "--workers", "1"]
    assert main(["leaderboard", *only, "--task", NAME, "--out", "board"]) == 0
    assert f"{NAME}: client_loss" in capsys.readouterr().out


def half_a_run(task: Any, out: str) -> None:
    class Killed(Exception):
        pass

    def stop_half_way(*told: Any) -> None:
        if told[0] > 0.5:
            raise Killed

    with pytest.raises(Killed):
        acefl.simulate(
            task,
            ACE(),
            lr=0.1,
            stop=Stop(arrivals=40),
            out=out,
            checkpoint=Every(arrivals=10),
            progress=stop_half_way,
        )


def test_a_run_is_resumed_only_by_who_names_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    task = build_task(NAME, 0)
    whole = acefl.simulate(task, ACE(), lr=0.1, stop=Stop(arrivals=40))
    for out in ("half", "called", "object"):
        half_a_run(task, out)
    forget()
    assert main(["run", "--resume", "half"]) == 2
    said = capsys.readouterr().err
    assert "a task of your own (owntasks.mine:make_task(batch=3)); pass it as task=" in said
    assert f"--task '{NAME}'" in said
    assert "owntasks.mine" not in sys.modules
    assert main(["run", "--resume", "half", "--task", "owntasks.mine:make_task(batch=2)"]) == 2
    assert "the task is not the run's: batch is 2; the run's was 3" in capsys.readouterr().err
    assert main(["run", "--resume", "half", "--task", "digits"]) == 2
    assert main(["run", "--resume", "half", "--task", NAME]) == 0
    assert acefl.load("half").model.equal(whole.model)
    assert acefl.resume("called", task=lambda seed: build_task(NAME, seed)).model.equal(whole.model)
    assert acefl.resume("object", task=build_task(NAME, 0)._task).model.equal(whole.model)


def test_a_run_is_replayed_on_its_own_task_and_on_no_other_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    run = acefl.simulate(build_task(NAME, 0), ASGD(), lr=0.1, stop=Stop(arrivals=40), out="run")
    replay = ["replay", "run", "--method", "ASGD", "--json"]
    assert main(replay) == 2
    assert f"name it again ({NAME})" in capsys.readouterr().err
    assert main([*replay, "--task", "owntasks.mine:make_task(batch=2)"]) == 2
    assert "the task is not the run's: batch is 2" in capsys.readouterr().err
    assert main([*replay, "--task", NAME]) == 0
    assert acefl.load("acefl-replay/runs/ASGD-seed0").model.equal(run.model)


def test_a_record_that_names_a_module_imports_nothing() -> None:
    described = {**build_task(NAME, 0).describe(), "name": "owntasks.mine:make_task"}
    forget()
    with pytest.raises(InvalidInput, match="unknown task"):
        acefl.tasks.build(described)
    assert "owntasks.mine" not in sys.modules


def test_names_are_taken_in_python_too(tmp_path: Path) -> None:
    small: dict[str, Any] = {"lr": 0.1, "stop": Stop(arrivals=20), "seeds": (0,), "workers": 1}
    one = compare("quadratic(clients=4, dim=2)", [ASGD()], **small, out=tmp_path / "1")
    asked = {"name": "quadratic", "clients": 4, "dim": 2}
    assert asked.items() <= json.loads((one / "compare.json").read_text())["task"].items()
    assert parse_task("digits") == {"name": "digits"}
    with pytest.raises(InvalidInput, match="unknown task 'di gits'"):
        parse_task("di gits")
