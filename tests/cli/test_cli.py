"""The command line: what it prints where, what it writes, and that it ends in one line when something is wrong.

Most tests call `acefl.cli.main` in this process, since a new one spends seconds on importing torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import acefl
from acefl import rules, tasks
from acefl.cli import main, options, reproduce
from acefl.cli.app import app
from acefl.core import optimizers, schedules
from acefl.core.stop import Stop
from acefl.fleets import scenario as timing
from acefl.studies import spec
from acefl.tasks.partition import PARTITIONS

TINY = ["--task", "quadratic", "--clients", "5", "--dim", "3", "--arrivals", "30"]
NAMES = [
    command.name or command.callback.__name__
    for command in app.registered_commands
    if command.callback and not command.hidden
]
SMALL_COMPARISON = ["compare", *TINY, "--method", "ACE", "--method", "FedBuff", "--seeds", "2", "--workers", "1"]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative paths land in a directory of the test's own, and lines are as long as they like."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


class Terminal:
    """Calls the command line and hands back what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(arguments)
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *arguments: str) -> dict[str, Any]:
        """What a command that succeeds says to a machine: JSON on stdout and nothing else anywhere."""
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        content = json.loads(out, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
        assert isinstance(content, dict)
        return content


@pytest.fixture
def acefl_command(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def python(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(acefl.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **pipes, **more)


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_gives_examples(acefl_command: Terminal) -> None:
    code, out, _ = acefl_command("--help")
    assert code == 0
    assert {"compare", "run", "tune", "report", "doctor"} <= set(NAMES)
    assert all(re.search(rf"^\W*{name} ", out, re.MULTILINE) for name in NAMES)
    assert "--install-completion" in out
    for arguments in [(), *((name,) for name in NAMES)]:
        assert "Examples:" in acefl_command(*arguments, "--help")[1]


@pytest.mark.parametrize("command", ["", *NAMES])
def test_help_shows_every_line_as_it_was_written(
    acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No line is too long for a terminal of 80 columns, and none has brackets, which the help would leave out."""
    monkeypatch.setenv("COLUMNS", "80")
    text = getattr(sys.modules[f"acefl.cli.{command or 'app'}"], command or "acefl_").__doc__
    shown = {line.strip() for line in acefl_command(*command.split(), "--help")[1].splitlines()}
    assert {line.strip() for line in text.splitlines()[1:]} <= shown  # the first one is wrapped


def test_help_says_what_can_be_reproduced_and_how_a_table_is_encoded(acefl_command: Terminal) -> None:
    shown = acefl_command("reproduce", "--help")[1]
    assert all(name in shown for name in reproduce.NAMES)
    shown = acefl_command("plan", "--help")[1]
    assert all(name in shown for name in ("fp32", "bf16", "int8", "int4"))


def test_a_table_on_the_device_is_in_no_file(acefl_command: Terminal) -> None:
    code, out, _ = acefl_command("plan", "--params", "100", "--clients", "2", "--home", "device")
    assert code == 0
    assert "in the memory of the model's device" in out


def test_no_arguments_is_help_and_version_is_the_packages(acefl_command: Terminal) -> None:
    assert acefl_command() == acefl_command("--help")
    assert acefl_command("--version") == (0, f"acefl {acefl.__version__}\n", "")


def test_help_imports_nothing_heavy() -> None:
    process = python("-X", "importtime", "-m", "acefl", "--help")
    out, err = process.communicate()
    assert process.returncode == 0
    assert "Usage: acefl" in out
    imported = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "acefl.cli.compare" in imported
    assert not imported & {"torch", "numpy", "pandas", "sklearn", "pyarrow", "jinja2", "flwr_datasets", "ray"}


# --- options are copies of settings that live elsewhere ---------------------------------------------------------------


def test_words_are_those_of_the_library() -> None:
    assert tuple(rules.METHODS) == options.METHODS
    assert set(tasks.TASKS) == set(options.TASKS)
    assert tuple(optimizers.OPTIMIZERS) == options.OPTIMIZERS
    assert tuple(schedules.SCHEDULES) == options.SCHEDULES
    assert options.PARTITIONS == PARTITIONS
    assert (timing.CLOCKS, tuple(timing.LAWS), timing.SPEEDS) == (options.CLOCKS, options.LAWS, options.SPEEDS)
    assert timing.DEVICES == options.DEVICES


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    def names(settings: Any) -> set[str]:
        return {field.name for field in dataclasses.fields(settings)}

    assert names(options.ScenarioOptions) == names(timing.Scenario) - {"durations", "visits"}  # tables, from Python
    assert names(options.StopOptions) == names(Stop)
    everybodys = {name for task in (tasks.digits, tasks.quadratic) for name in inspect.signature(task).parameters}
    assert names(options.TaskOptions) == everybodys - {"seed", "compile"} | {"task"}  # how: in --task "..."


def test_no_options_are_the_default_comparison() -> None:
    assert options.ScenarioOptions().build() == spec.DEFAULT_SCENARIO
    assert options.StopOptions().build() == spec.DEFAULT_STOP
    assert options.TaskOptions().build().items() >= spec.DEFAULT_TASK.items()
    assert tuple(options.parse_seeds("3")) == spec.DEFAULT_SEEDS
    assert tuple(options.parse_methods(None)) == spec.PAPER_METHODS


def test_help_shows_the_defaults_that_hold() -> None:
    laws = [default for _, default in timing.LAWS.values() if default]
    held = {
        **options.TaskOptions(task="quadratic").build(),
        **options.TaskOptions().build(),
        **dataclasses.asdict(options.ScenarioOptions().build()),
        "shape": ", ".join(map(str, laws)),
        "concurrency": "all",
        "rejoin_at": "never",
        "local": "one gradient",
    }
    hints = {
        name: hint
        for group in (options.TaskOptions, options.ScenarioOptions)
        for name, hint in get_type_hints(group, include_extras=True).items()
    }
    assert hints.keys() - held.keys() == {"task"}
    for name in hints.keys() & held.keys():
        shown = re.search(r"\\\[(.*)]\[/dim]$", hints[name].__metadata__[0].help)
        assert (shown[1] if shown else "None") == str(held[name]), name


def test_every_scenario_option_arrives_where_it_belongs(acefl_command: Terminal) -> None:
    settings: dict[str, Any] = {
        "clock": "tick",
        "delay": 2.0,
        "law": "pareto",
        "shape": 2.5,
        "spread": 3.0,
        "slow": "random",
        "fixed": 0.5,
        "concurrency": 4,
        "dropout": 0.25,
        "dropout_at": 0.4,
        "rejoin_at": 0.6,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    result = acefl_command.json("run", *TINY, "--lr", "0.1", *flags)
    assert result["scenario"] == {**settings, "trace": None, "devices": None, "durations": None, "visits": None}
    phones = acefl_command.json("run", *TINY, "--lr", "0.1", "--devices", "phones", "--slow", "first")["scenario"]
    assert (phones["devices"], phones["slow"], phones["spread"]) == ("phones", "first", 1.0)
    Path("trace.csv").write_text("client,duration\n" + "".join(f"{client},1\n" for client in range(5)))
    traced = acefl_command.json("run", *TINY, "--lr", "0.1", "--trace", "trace.csv", "--time", "9")
    assert traced["scenario"]["trace"] == "trace.csv"
    assert traced["warnings"] == []
    assert traced["stop"] == {"arrivals": 30, "steps": None, "time": 9.0}


def test_a_run_says_whether_and_when_it_reached_its_target(acefl_command: Terminal) -> None:
    run = ["run", *TINY, "--lr", "0.2", "--evaluations", "30"]
    aimed = acefl_command.json(*run, "--target", "gap=3")
    reached = aimed["target"]["reached"]
    assert aimed["stop"]["target"] == ["gap", 3.0]
    assert 0 < reached["arrivals"] == aimed["arrivals"] < 30
    code, out, err = acefl_command(*run, "--target", "gap=3")
    assert (code, "gap ≤ 3 was reached at time" in out, "warning" in err) == (0, True, False)
    code, out, _ = acefl_command(*run, "--target", "gap=-1")
    assert (code, "gap ≤ -1 was not reached" in out) == (0, True)
    assert acefl_command.json("run", "--task", "quadratic", "--clients", "5", "--lr", "0.2", "--target", "gap=5")[
        "stop"
    ] == {
        "arrivals": 10_000,
        "steps": None,
        "time": None,
        "target": ["gap", 5.0],
    }


def test_a_table_with_a_target_fits_the_terminal(acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = ["--clients", "5", "--arrivals", "40", "--lr", "0.2", "--seeds", "2", "--workers", "1"]
    acefl_command.json(
        "compare", *digits, "--method", "ACE", "--method", "ASGD", "--target", "accuracy=0.5", "--out", "w"
    )
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = acefl_command("report", "w")
        assert max(map(len, out.splitlines())) <= columns
        assert "method" in out
        assert "ASGD" in out
        assert "accuracy" in out


@pytest.mark.parametrize("flags", [("--target", "f1=0.9"), ("--by", "f1")])
def test_a_metric_that_is_not_there_is_one_line_on_every_command(
    acefl_command: Terminal, flags: tuple[str, str]
) -> None:
    commands = [SMALL_COMPARISON, ["tune", *TINY], ["sweep", "--vary", "lr=0.1,0.2", "--vary", "task.name=quadratic"]]
    for command in commands if flags[0] == "--by" else [*commands[:2], ["run", *TINY, "--lr", "0.1"]]:
        code, _, err = acefl_command(*command, *flags)
        assert code == 2, command
        assert "no metric 'f1' here; allowed: client_loss, fast_loss, gap, grad_norm" in err


def test_results_go_by_the_metric_that_was_named(acefl_command: Terminal) -> None:
    compared = acefl_command.json(*SMALL_COMPARISON, "--by", "grad_norm", "--out", "by")
    assert (compared["objective"], compared["by"]) == ("grad_norm", "grad_norm")
    norms = [row["grad_norm"] for row in compared["summary"]]
    assert norms == sorted(norms)
    tuned = acefl_command.json("tune", *TINY, "--budget", "2", "--by", "heldout_worst_loss", "--workers", "1")
    assert tuned["objective"] == "heldout_worst_loss"
    assert all("heldout_worst_loss" in trial for trial in tuned["trials"])


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", [0]), ("3", [0, 1, 2]), ("4,7", [4, 7]), ("5,", [5]), ("2, 0", [2, 0])]
)
def test_seeds_are_a_number_of_them_or_a_list(text: str, seeds: list[int]) -> None:
    assert options.parse_seeds(text) == seeds


# --- commands ---------------------------------------------------------------------------------------------------------


def test_compare_prints_a_table_and_writes_a_record(acefl_command: Terminal) -> None:
    code, out, err = acefl_command(*SMALL_COMPARISON, "--lr", "0.1", "--out", "deep/er")
    assert code == 0
    assert "deep/er/report.html" in out
    assert Path("deep/er/report.html").stat().st_size > 1000
    assert all(name in out for name in ("method", "ACE", "FedBuff", "±", "uploads"))
    assert re.search(r"staleness of about 4 steps .*: ACE$", err, re.MULTILINE)
    assert re.search(r"staleness of about 0.4 steps .*: FedBuff$", err, re.MULTILINE)
    assert acefl.load("deep/er/runs/ACE-seed1").arrivals == 30

    again = acefl_command.json(*SMALL_COMPARISON, "--lr", "0.2", "--out", "deep/er", "--title", "Again")
    recorded = json.loads(Path("deep/er/compare.json").read_text())
    assert again.items() >= recorded.items()
    assert (recorded["title"], recorded["methods"][0]["lr"]) == ("Again", 0.2)
    assert {row["method"] for row in again["summary"]} == {"ACE", "FedBuff"}
    assert os.listdir("deep") == ["er"]


def test_tune_says_what_it_found_and_what_it_cost(acefl_command: Terminal) -> None:
    few = ["--budget", "4", "--workers", "1"]
    tuned = acefl_command.json("tune", *TINY, "--method", "fedbuff", *few)
    whole = {trial["lr"]: trial["gap"] for trial in tuned["trials"] if trial["share"] == 1}
    assert tuned["best"] == min(whole, key=lambda rate: whole[rate])
    assert tuned["method"] == rules.label(rules.FedBuff(buffer=tuned["settings"]["buffer"]))
    assert tuned["budget"]["arrivals"] == sum(trial["arrivals"] for trial in tuned["trials"])
    code, out, _ = acefl_command("tune", *TINY, "--method", "FedBuff(buffer=5)", *few, "--out", "search")
    [best] = [line for line in out.splitlines() if line.rstrip().endswith("best")]
    recorded = json.loads(Path("search/tuning.json").read_text())
    assert (code, float(best.split()[0])) == (0, recorded["found"]["lr"])
    assert list(recorded["ranges"]) == ["lr"]  # the buffer was named, so it stays
    assert recorded["found"]["method"] == "FedBuff(buffer=5)"
    assert "within a budget of 4 whole runs" in out


def test_run_is_the_run_that_compare_makes_bit_for_bit(acefl_command: Terminal) -> None:
    acefl_command.json("compare", *TINY, "--method", "ACED(tau=20)", "--lr", "0.1", "--seeds", "4,", "--workers", "1")
    compared = acefl.load("acefl-compare/runs/ACED_tau=20-seed4")
    flags = ["--method", "ACED(tau=20)", "--lr", "0.1", "--seed", "4"]
    result = acefl_command.json("run", *TINY, *flags, "--out", "lone")
    assert result["final"].items() <= compared.final.items()  # compare also measures influence
    saved = acefl.load("lone")
    assert saved.model.equal(compared.model)
    assert saved.participation == result["participation"] == compared.participation
    assert Path(result["report"]).exists()
    code, out, _ = acefl_command("run", *TINY, *flags)
    assert (code, sorted(os.listdir())) == (0, ["acefl-compare", "lone"])
    assert re.search(r"^uploads +30$", out, re.MULTILINE)


def test_local_work_is_named_with_the_task_and_recorded(acefl_command: Terminal) -> None:
    """FedAvg on local epochs: what a person types is what `run`, `compare` and a task of Python do."""
    local = "sgd(lr=0.05, epochs=2)"
    settings = ["--task", f"digits(local='{local}')", *("--clients", "5"), *("--method", "FedAvg"), *("--lr", "1")]
    acefl_command.json("run", *settings, "--arrivals", "10", "--out", "lone")
    option = ["--local", local, *settings[2:]]
    acefl_command.json("compare", *option, "--arrivals", "10", *("--seeds", "1"), *("--workers", "1"))
    lone, compared = acefl.load("lone"), json.loads(Path("acefl-compare/compare.json").read_text())
    assert lone.config["task"]["local"] == compared["task"]["local"] == local
    said = "A client takes 2 epochs of SGD (lr 0.05) on minibatches of 20 of its samples"
    for described in (lone.config["task"], compared["task"]):
        assert described["client_work"].startswith(said)
    assert lone.model.equal(acefl.load("acefl-compare/runs/FedAvg-seed0").model)


def test_a_run_that_diverges_ends_and_says_so(acefl_command: Terminal) -> None:
    wild = ["run", *TINY, "--arrivals", "2000", "--method", "ASGD", "--lr", "50"]
    code, _, err = acefl_command(*wild)
    assert code == 0
    assert "warning: the model diverged" in err
    result = acefl_command.json(*wild)
    assert (result["diverged"], result["final"]["gap"]) == (True, None)


def test_tune_fails_when_every_rate_diverges(acefl_command: Terminal) -> None:
    code, out, err = acefl_command(
        "tune", *TINY, "--arrivals", "2000", "--method", "ASGD", "--lr-centre", "1e12", "--workers", "1", "--json"
    )
    assert (code, json.loads(out)["best"]) == (1, None)
    assert "diverged" in err


def test_report_needs_nothing_but_the_files(acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    made = acefl_command.json(*SMALL_COMPARISON, "--lr", "0.1", "--out", "made")
    page = Path("made/report.html")
    original = page.read_text()
    page.unlink()
    Path("made").rename("moved")
    rebuilt = acefl_command.json("report", "moved")
    assert Path("moved/report.html").read_text() == original
    assert rebuilt["summary"] == made["summary"]
    assert acefl_command("report", "moved", "--out", "elsewhere.html")[0] == 0
    links = "<th>pages of its runs</th>"  # a page elsewhere has none
    assert links in original
    assert links not in Path("elsewhere.html").read_text()


def test_tables_fit_the_terminal(acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [word for name in rules.METHODS for word in ("--method", name)]
    acefl_command.json("compare", *TINY, *methods, "--seeds", "2", "--lr", "0.01", "--workers", "1", "--out", "all")
    for columns in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = acefl_command("report", "all")
        assert max(map(len, out.splitlines())) <= columns
        assert "…" not in out
        assert all(word in out for word in ("DelayAdaptiveASGD", "loss", "uploads", "time", "lr"))


def test_settings_that_cannot_matter_are_pointed_out(acefl_command: Terminal) -> None:
    idle = ["run", *TINY, "--lr", "0.1", "--spread", "1", "--delay", "5"]
    _, _, err = acefl_command(*idle)
    assert re.search(r"^warning: delay=5 only sets the unit of time", err, re.MULTILINE)
    [warning] = acefl_command.json(*idle)["warnings"]
    assert warning in err


def test_doctor_tries_everything_and_names_what_is_missing(
    acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def without_numba(package: str) -> str:
        if package == "numba":
            raise metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(metadata, "version", without_numba)
    code, out, err = acefl_command("doctor", "--json")
    found = json.loads(out)
    assert (code, err) == (1, "")
    assert [problem for problem in found["problems"] if "numba is not installed" not in problem] == []
    assert (found["packages"]["numba"], found["packages"]["torch"]) == (None, version("torch"))
    assert found["machine"]["acefl"] == acefl.__version__
    assert found["run"]["arrivals"] == 40
    assert found["temporary"]["writable"] is True
    assert found.keys() >= {"extras", "memory", "table_kernels", "compute"}


# --- errors -----------------------------------------------------------------------------------------------------------

# typer words what is no number in its own way, which is not the same in all versions
WRONG: list[tuple[list[str], list[str]]] = [
    (["nonsense"], ["nonsense", "compare, run"]),
    (["compare", "--tua", "3"], ["--tua", "acefl compare --help"]),
    (["compare", "surplus"], ["surplus"]),
    (["compare", "--method", "ACEE"], ["ACEE", "DelayAdaptiveASGD"]),
    (["compare", "--method", "ACED(tau=0)"], ["tau is 0", "at least 1"]),
    (["compare", "--method", "ACED(tua=5)"], ["tua", "freshness"]),
    (["compare", "--method", "ACE", "--method", "ace()", *TINY], ["ACE", "twice"]),
    (["compare", "--delay", "-1"], ["delay is -1", "above 0"]),
    (["compare", "--delay", "soon"], ["--delay", "valid"]),
    (["compare", "--delay", "nan"], ["delay is nan"]),
    (["compare", "--clock", "tock"], ["--clock", "event", "tick", "sampled"]),
    (["compare", *TINY, "--concurrency", "6"], ["concurrency is 6", "5"]),
    (["compare", *TINY, "--clients", "0"], ["clients is 0", "at least 1"]),
    (["compare", "--task", "digit"], ["digit", "digits", "quadratic"]),
    (["compare", *TINY, "--alpha", "1"], ["quadratic", "alpha", "dim"]),
    (["compare", "--task", "quadratic(dims=3)"], ["quadratic", "dims", "dim"]),
    (["compare", "--task", "quadratic(dim=[3])"], ["dim", "plain"]),
    (["compare", "--task", "digits(local='adam(lr=1)')"], ["local is 'adam(lr=1)'", "sgd or adamw"]),
    (["compare", "--task", "cifar10"], ["cifar10", "folder"]),
    (["compare", *TINY, "--trace", "missing.csv"], ["missing.csv"]),
    (["compare", *TINY, "--dropout", "1"], ["dropout is 1"]),
    (["compare", *TINY, "--arrivals", "0"], ["arrivals is 0"]),
    (["compare", *TINY, "--arrivals", "1.5"], ["--arrivals", "valid integer"]),
    (["compare", *TINY, "--seeds", "0"], ["seeds", "such as 3"]),
    (["compare", *TINY, "--seeds", "1,one"], ["seeds", "1,one"]),
    (["compare", *TINY, "--seeds", "1,1"], ["seeds", "each once"]),
    (["compare", *TINY, "--seeds", f"{spec.TUNING_SEED},"], [str(spec.TUNING_SEED), "tuning"]),
    (["compare", *TINY, "--lr", "0"], ["lr is 0", "above 0"]),
    (["compare", *TINY, "--lr", "inf"], ["lr is inf"]),
    (["compare", *TINY, "--lr", "ACE=0.1", "--lr", "ACE=0.2"], ["lr of ACE is given twice"]),
    (["compare", *TINY, "--lr-centre", "0"], ["lr-centre is 0", "above 0"]),
    (["compare", *TINY, "--lr", "0.1", "--noise", "nan"], ["noise is nan", "a finite number"]),
    (["compare", *TINY, "--workers", "0"], ["workers is 0"]),
    (["compare", *TINY, "--evaluations", "0"], ["--evaluations", "1"]),
    (["compare", *TINY, "--out", "foreign"], ["foreign", "not an acefl record"]),
    (["compare", *TINY, "--out", "foreign/notes.txt"], ["notes.txt", "not an acefl record"]),
    (["compare", *TINY, "--out", "foreign/notes.txt/below"], ["notes.txt"]),
    (["compare", *TINY, "--out", "pretrained"], ["pretrained", "not an acefl record"]),
    (["compare", *TINY, "--out", "."], ["not an acefl record"]),
    (["run", *TINY], ["--lr"]),
    (["run", *TINY, "--lr", "-3"], ["lr is -3"]),
    (["run", *TINY, "--lr", "0.1", "--seed", "-1"], ["seed is -1"]),
    (["run", *TINY, "--lr", "0.1", "--out", "foreign"], ["foreign", "not an acefl record"]),
    (["run", *TINY, "--lr", "0.1", "--method", "FedBuff(buffer=0)"], ["buffer is 0"]),
    (["tune", "--method", "SGD"], ["SGD", "ASGD"]),
    (["tune", *TINY, "--lr-centre", "-1"], ["lr-centre is -1", "above 0"]),
    (["sweep", "missing.toml"], ["cannot read grid missing.toml: No such file or directory"]),
    (["plan", "--params", "0", "--clients", "3"], ["at least 1"]),
    (["report"], ["DIR"]),
    (["report", "missing"], ["missing", "no such directory"]),
    (["report", "foreign"], ["foreign", "compare.json"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_input_is_one_line_and_nothing_written(
    acefl_command: Terminal, own_directory: Path, arguments: list[str], words: list[str]
) -> None:
    Path("foreign").mkdir()
    Path("foreign/notes.txt").write_text("not acefl's to delete")
    Path("pretrained").mkdir()
    Path("pretrained/config.json").write_text('{"model_type": "bert"}')
    before = sorted(own_directory.rglob("*"))
    code, out, err = acefl_command(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert all(word in err for word in words), err
    assert sorted(own_directory.rglob("*")) == before


def test_a_foreign_directory_is_refused_before_any_work(
    acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("foreign").mkdir()
    Path("foreign/notes.txt").touch()
    worked: list[Any] = []
    monkeypatch.setitem(tasks.TASKS, "quadratic", lambda **settings: worked.append(settings))
    for command in (["compare"], ["run", "--lr", "0.1"]):
        assert acefl_command(*command, *TINY, "--out", "foreign")[0] == 2
    assert worked == []


def test_a_stand_in_has_as_many_clients_as_the_run_had(acefl_command: Terminal) -> None:
    assert acefl_command("run", *TINY, "--lr", "0.1", "--out", "made")[0] == 0
    replay = ["replay", "made", "--method", "ACE", "--task", "quadratic", "--clients"]
    assert acefl_command(*replay, "3") == (2, "", "error: clients is 3; allowed: 5, as many as the run had\n")
    assert acefl_command(*replay, "5")[0] == 0


def test_too_little_memory_is_one_line(acefl_command: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**settings: Any) -> None:
        raise MemoryError

    monkeypatch.setitem(tasks.TASKS, "quadratic", functools.wraps(tasks.TASKS["quadratic"])(build))
    code, out, err = acefl_command("run", "--task", "quadratic", "--dim", "7", "--lr", "0.1")
    assert (code, out, err) == (1, "", "error: out of memory: try fewer clients, or a smaller model\n")


def test_the_process_itself_ends_with_the_code_and_the_line() -> None:
    process = python("-m", "acefl", "run", "--lr", "0.1", "--method", "ACED(tau=0)")
    out, err = process.communicate()
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: tau is 0")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_it_leaves_nothing_behind(own_directory: Path, number: signal.Signals, code: int) -> None:
    """As a terminal does it: the signal goes to the whole group, the workers that are just starting included."""
    endless = ["compare", *TINY, "--arrivals", "100000000", "--workers", "2", "--out", "new/record"]
    process = python("-m", "acefl", *endless, start_new_session=True)
    try:
        while process.poll() is None and not list(own_directory.glob("new/record/unfinished")):
            time.sleep(0.05)
        assert process.poll() is None
        os.killpg(process.pid, number)
        out, err = process.communicate()
    finally:
        process.kill()
    assert (process.returncode, out) == (code, "")
    if number is signal.SIGINT:
        assert [line for line in err.splitlines() if not line.startswith(("clock", "to do"))] == [
            "error: interrupted; nothing was written"
        ]
    assert "Traceback" not in err
    assert list(own_directory.iterdir()) == []


def test_an_optimizer_and_a_schedule_are_named_and_recorded(acefl_command: Terminal) -> None:
    step = ["--optimizer", "momentum(beta=0.5)", "--schedule", "Cosine(warmup=0.1)"]
    ran = acefl_command.json("run", *TINY, "--lr", "0.1", *step)
    assert ran["optimizer"] == {"name": "Momentum", "beta": 0.5}
    assert ran["schedule"] == {"name": "Cosine", "floor": 0.0, "warmup": 0.1}
    compared = acefl_command.json(*SMALL_COMPARISON, "--lr", "0.1", "--out", "stepped", *step)
    assert compared["optimizer"] == ran["optimizer"]
    assert compared["schedule"] == ran["schedule"]
    code, _, err = acefl_command("run", *TINY, "--lr", "0.1", "--optimizer", "Lion")
    assert code == 2
    assert "unknown optimizer 'Lion'; allowed: SGD, Momentum, Nesterov, Adam, Yogi" in err
    code, _, err = acefl_command("compare", *TINY, "--method", "FedAdam", "--lr", "0.1", "--optimizer", "Adam")
    assert code == 2
    assert "which FedAdam cannot be run with" in err
