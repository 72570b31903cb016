"""Methods of people's own by name: wherever a method is named, in workers too, and one line where it is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import acefl
from acefl import ACE, InvalidInput, rules
from acefl.cli import main
from acefl.core.own import is_own

TINY = ["--task", "quadratic", "--clients", "5", "--dim", "3", "--arrivals", "40"]
MODULE = '''
from dataclasses import dataclass
from acefl import ASGD, Method, Rule

@dataclass(frozen=True)
class Scaled(Method):
    """ASGD whose updates count `factor` times."""
    factor: float = 1.0

    def build(self, clients, like, samples=None):
        return ScaledRule(self.factor, ASGD().build(clients, like, samples))

class ScaledRule(Rule):
    saved = ("plain",)
    def __init__(self, factor, plain):
        self.factor, self.plain = factor, plain
    def absorb(self, arrival):
        return self.plain.absorb(arrival)
    def direction(self):
        return self.factor * self.plain.direction()
    def clear(self):
        self.plain.clear()

class ACE(Scaled):
    """Somebody's own method that has the name of one of the library's."""

NUMBER = 3
'''


@pytest.fixture(autouse=True)
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in the current directory, which is not on the path yet; forgotten again afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("ownpkg").mkdir()
    Path("ownpkg/__init__.py").touch()
    Path("ownpkg/mine.py").write_text(MODULE)
    Path("ownpkg/broken.py").write_text("1 / 0")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownpkg"]:
        del sys.modules[name]


def test_a_colon_before_the_settings_is_what_tells_them_apart() -> None:
    assert all(map(is_own, ("a.b:C", "a:C(x=1)")))
    assert not any(map(is_own, ("ACE(home='C:/rows')", "ACE")))


def test_a_method_is_found_in_the_current_directory_with_its_settings() -> None:
    rule = rules.parse("ownpkg.mine:Scaled(factor=0.5)")
    assert (rules.label(rule), type(rule).__module__) == ("Scaled(factor=0.5)", "ownpkg.mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ownpkg.nowhere:Scaled", "cannot import ownpkg.nowhere: ModuleNotFoundError"),
        ("ownpkg.broken:Scaled", "cannot import ownpkg.broken: ZeroDivisionError"),
        ("ownpkg.mine:Other", "ownpkg.mine has no 'Other'"),
        ("ownpkg.mine:NUMBER", "is not a method; allowed: a class of settings with build"),
        ("ownpkg.mine:ScaledRule", "is a rule; allowed: the settings that build it"),
        ("ownpkg.mine:Scaled(colour=1)", "allowed: factor"),
        ("ownpkg.mine:Scaled(1)", "allowed: a module, a colon and a name"),
        ("own-pkg:Scaled", "allowed: a module, a colon and a name"),
        (":Scaled", "allowed: a module, a colon and a name"),
        ("os:", "allowed: a module, a colon and a name"),
    ],
)
def test_what_is_no_method_is_said_in_one_line(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(")):
        rules.parse(text)
    assert main(["run", *TINY, "--lr", "0.1", "--method", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_is_compared_in_worker_processes_too_and_recorded(workers: str) -> None:
    methods = ["--method", "ASGD", "--rule", "ownpkg.mine:Scaled(factor=2.0)"]
    assert main(["compare", *TINY, *methods, "--lr", "0.1", "--seeds", "1", "--workers", workers, "--out", "both"]) == 0
    plain, own = json.loads(Path("both/compare.json").read_text())["methods"]
    assert "imported_from" not in plain
    assert (own["label"], own["imported_from"]) == ("Scaled(factor=2.0)", "ownpkg.mine:Scaled")
    run = acefl.load(f"both/{own['runs'][0]}")
    again = rules.parse(f"{run.config['imported_from']}(factor={run.config['rule']['factor']})")
    task = acefl.tasks.quadratic(clients=5, dim=3, seed=0)
    settings = {"scenario": acefl.Scenario(**run.config["scenario"]), "stop": acefl.Stop(**run.config["stop"])}
    assert acefl.simulate(task, again, lr=0.1, seed=0, **settings).model.equal(run.model)
    twice = acefl.simulate(task, acefl.ASGD(), lr=0.2, seed=0, **settings)
    assert twice.final["gap"] == pytest.approx(run.final["gap"], rel=1e-4)


def test_a_sweep_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["--vary", "method=ASGD,ownpkg.mine:Scaled(factor=0.5)", "--vary", "lr=0.1", "--vary", "task.name=quadratic"]
    code = main(["sweep", *vary, "--vary", "task.clients=4", "--vary", "stop.arrivals=20", "--workers", "2", "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2


def test_a_run_is_gone_on_with_only_by_who_names_its_method(capsys: pytest.CaptureFixture[str]) -> None:
    rule, task = rules.parse("ownpkg.mine:ACE(factor=0.5)"), acefl.tasks.quadratic(clients=5, dim=3, seed=0)
    whole = acefl.simulate(task, rule, lr=0.1, stop=acefl.Stop(arrivals=40))

    class Killed(Exception):
        pass

    def stop_half_way(spent: float, *_: object) -> None:
        if spent > 0.5:
            raise Killed

    with pytest.raises(Killed):
        acefl.simulate(
            task,
            rule,
            lr=0.1,
            stop=acefl.Stop(arrivals=40),
            out="half",
            checkpoint=acefl.Every(arrivals=10),
            progress=stop_half_way,
        )
    assert main(["run", "--resume", "half"]) == 2
    assert "by ACE, your own (ownpkg.mine:ACE); pass it as rule=" in capsys.readouterr().err
    assert main(["run", "--resume", "half", "--method", "ownpkg.mine:ACE(factor=0.25)"]) == 2
    assert main(["run", "--resume", "half", "--method", "ACE"]) == 2
    assert main(["run", "--resume", "half", "--method", "ownpkg.mine:ACE(factor=0.5)"]) == 0
    assert acefl.load("half").model.equal(whole.model)
    assert type(ACE()) is rules.METHODS["ACE"]
