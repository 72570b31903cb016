"""What README and docs say is true: their programs run and print what is shown, their commands, files and links exist.

A page that says `python blocks on this page are run` is one program: its blocks run in order, in one namespace. A text
block right after a python block is what that block prints. Numbers may be off by 5 % or 0.02, since another processor
rounds differently and may get another sample right; words may not.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import math
import os
import pkgutil
import pydoc
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import typer.main

import acefl
import acefl.runs
from acefl.core.optimizers import Optimizer, Stepper
from acefl.core.schedules import Schedule
from acefl.core.state import HasState
from acefl.tasks.base import SharingTask, Task
from acefl.testing import LAWS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = "<!-- python blocks on this page are run"
PROGRAMS = [page for page in PAGES if MARK in page.read_text(encoding="utf-8")]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
_LINK = re.compile(r"\]\(([^)#\s]+)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _blocks(page: Path) -> Iterator[tuple[str, str, int, str]]:
    """Language, content, line, and the output shown for it: the text block that follows with nothing in between."""
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        shown = ""
        if after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip():
            shown = after[2]
        yield fence[1], fence[2], text.count("\n", 0, fence.start(2)), shown


def _same(printed: str, shown: str) -> bool:
    if _NUMBER.sub("#", printed).split() != _NUMBER.sub("#", shown).split():
        return False
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(shown), strict=True)
    return all(math.isclose(_value(a), _value(b), rel_tol=0.05, abs_tol=0.02) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def test_the_pages_with_programs_are_found() -> None:
    expected = ["README.md", "docs/adding-a-rule.md", "docs/memory.md", "docs/quickstart.md", "docs/simulate.md"]
    assert set(expected) <= {_name(page) for page in PROGRAMS}


@pytest.mark.parametrize("page", PROGRAMS, ids=_name)
def test_a_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": _name(page)}
    for language, content, line, shown in _blocks(page):
        if language != "python":
            continue
        program = compile("\n" * line + content, _name(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(program, namespace)
        if not _same(printed.getvalue(), shown):
            pytest.fail(f"{_name(page)}, line {line}: shown\n{shown}\nbut printed\n{printed.getvalue()}")


def _run_example(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    path = ROOT / "examples" / name
    monkeypatch.setattr(sys, "argv", [str(path)])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def test_own_rule_keeps_the_laws_and_survives_a_broken_client(monkeypatch: pytest.MonkeyPatch) -> None:
    first, plain, clipped = _run_example("own_rule.py", monkeypatch).splitlines()
    assert first == "ClippedACE keeps every law"
    accuracy = {line.split(":")[0]: _value(_NUMBER.findall(line)[0]) for line in (plain, clipped)}
    assert accuracy["ClippedACE"] > 0.9
    assert accuracy["ACE"] < 0.75


def test_the_rule_on_the_page_is_the_one_in_the_examples() -> None:
    example = (ROOT / "examples" / "own_rule.py").read_text(encoding="utf-8")
    shown = [content for language, content, _, _ in _blocks(ROOT / "docs" / "adding-a-rule.md") if language == "python"]
    classes = [block[block.index("@dataclass") :].strip() for block in shown if "class ClippedRule" in block]
    assert len(classes) == 1
    assert classes[0] in example


def test_own_task_serves_every_hospital(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _run_example("own_task.py", monkeypatch).splitlines()
    assert [line.split()[0] for line in lines] == ["ACE", "FedBuff"]
    for line in lines:
        accuracy, slow, _ = map(_value, _NUMBER.findall(line))
        assert accuracy > 0.85, line
        assert slow > 0.85, line


def test_hospitals_is_short_and_reports_four_methods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = (ROOT / "examples" / "hospitals.py").read_text(encoding="utf-8").split('"""')[2]
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    monkeypatch.chdir(tmp_path)
    assert _run_example("hospitals.py", monkeypatch) == "report: hospitals-report/report.html\n"
    record = json.loads((tmp_path / "hospitals-report" / "compare.json").read_text(encoding="utf-8"))
    assert [method["method"] for method in record["methods"]] == ["ACE", "CA2FL", "FedBuff", "ASGD"]
    assert "Karolinska" in (tmp_path / "hospitals-report" / "report.html").read_text(encoding="utf-8")


def _commands(page: Path) -> list[str]:
    blocks = [content for language, content, _, _ in _blocks(page) if language == "console"]
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_exist(page: Path) -> None:
    from acefl.cli.app import app

    group = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in _commands(page):
        words = shlex.split(line.partition("   #")[0])
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, line
        elif words[0] == "acefl":
            command = group.commands.get(words[1])  # type: ignore[attr-defined]
            assert command is not None, line
            known = {option for parameter in command.params for option in parameter.opts}
            given = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
            assert given <= known | {"--help"}, line


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_named_programs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in _LINK.findall(_FENCE.sub("", text)):
        if "://" not in link:
            assert (page.parent / link).exists(), link
    for module in re.findall(r"python -m (benchmarks\.\w+)", text):
        assert importlib.util.find_spec(module) is not None, module
    for program in re.findall(r"(?:python |`)((?:examples|docs|benchmarks)/[\w./-]+\.py)", text):
        assert (ROOT / program).exists(), program


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_every_command_is_on_the_page_of_commands() -> None:
    from acefl.cli.app import app

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    shown = [command.name for command in commands if not command.hidden]
    assert [name for name in shown if f"| `acefl {name}" not in page] == []


def test_the_page_of_benchmarks_names_every_record_and_every_missed_target() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    records = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert {path.name for path in records} == set(re.findall(r"`benchmarks/results/(\w+\.json)`", page))
    missed = page.partition("## Targets that were missed")[2]
    for path in records:
        for target in json.loads(path.read_text(encoding="utf-8")).get("targets", []):
            shown = {f"{target['measured']:.2f}", f"{target['measured']:.1f}"}
            assert target["met"] or any(f"| {value}" in missed for value in shown), (path.name, target)


def test_every_public_name_is_on_a_reference_page() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = {
        name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    modules = {name: importlib.import_module(f"acefl.{name}") for name in ("flower", "hf", "tasks")}
    wanted = {f"acefl.{name}" for name in acefl.__all__ if name not in modules}
    wanted |= {f"acefl.{module}.{name}" for module, content in modules.items() for name in content.__all__}
    wanted |= {f"acefl.runs.loggers.{name}" for name in ("Logger", "TensorBoard", "WandB", "MLflow")} | {
        "acefl.tasks.privacy"
    }
    assert wanted - shown == set()
    assert [name for name in shown if pydoc.locate(name) is None] == []


def _public() -> Iterator[tuple[str, object]]:
    for module in (
        "acefl",
        "acefl.flower",
        "acefl.hf",
        "acefl.runs.loggers",
        "acefl.tasks.privacy",
        "acefl.tasks",
        "acefl.testing",
    ):
        content = importlib.import_module(module)
        own = [name for name, value in vars(content).items() if getattr(value, "__module__", "") == module]
        for name in getattr(content, "__all__", [name for name in own if not name.startswith("_")]):
            value = getattr(content, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module}.{name}", value


@pytest.mark.parametrize(("name", "value"), [pytest.param(*pair, id=pair[0]) for pair in _public()])
def test_every_argument_is_described(name: str, value: type) -> None:
    text = inspect.getdoc(value) or ""
    assert text
    if (inspect.isclass(value) and issubclass(value, Exception)) or getattr(value, "_is_protocol", False):
        return
    if value in LAWS.values():  # all take one method's settings
        return
    listed = re.findall(r"^\s*((?:\w+, )*\w+):", text, re.MULTILINE)
    described = {word for words in listed for word in words.split(", ")} | set(re.findall(r"`(\w+)", text))
    parameters = inspect.signature(value).parameters
    assert [parameter for parameter in parameters if parameter not in described] == []


def _offered() -> Iterator[Any]:
    """Public classes with their public bases, and the classes and functions of `acefl.runs`."""
    for _, value in _public():
        if inspect.isclass(value):
            yield from (kind for kind in value.__mro__ if kind.__module__.startswith("acefl."))
    for module in pkgutil.iter_modules(acefl.runs.__path__, "acefl.runs."):
        content = vars(importlib.import_module(module.name))
        yield from (value for value in content.values() if getattr(value, "__module__", "") == module.name)


_OFFERED = {f"{value.__module__}.{value.__name__}": value for value in _offered() if value.__name__[0] != "_"}
_PROTOCOLS = (Task, SharingTask, HasState, Stepper, Optimizer, Schedule)


@pytest.mark.parametrize("value", _OFFERED.values(), ids=_OFFERED)
def test_every_method_is_described_there_or_in_what_it_fulfils(value: Any) -> None:
    assert inspect.getdoc(value)
    for name in vars(value) if inspect.isclass(value) else ():
        member = getattr(value, name)
        if name[0] != "_" and (callable(member) or isinstance(member, property | cached_property)):
            promised = [getattr(kind, name) for kind in _PROTOCOLS if name in vars(kind)]
            assert any(inspect.getdoc(described) for described in (member, *promised)), name


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "figures").glob("*.png"):
        assert picture.stat().st_size < 200_000, picture.name


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()
    assert (tmp_path / "site" / "search" / "search_index.js").exists()  # what a page opened as a file can load


def test_every_dotted_name_in_the_docs_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for name in set(re.findall(r"\bacefl(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8"))):
            found, parts = acefl, name.split(".")
            for depth, part in enumerate(parts[1:], start=2):
                found = getattr(found, part, None) or importlib.import_module(".".join(parts[:depth]))
