"""Commands and options that a message tells people to type exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer.main

import acefl
from acefl.cli.app import app

SOURCE = Path(acefl.__file__).parent
OTHER_PROGRAMS = {  # they start Flower's programs, or stand in for one, with its options
    SOURCE / "fleets" / "flower" / "loopback.py",
    SOURCE / "flower" / "executor.py",
}
ELSEWHERE = re.compile(r"hf download.*")  # a command that is not acefl's, to the end of its line
COMMAND, OPTION = re.compile(r"\bacefl ([a-z]+)"), re.compile(r"(?<![\w-])--[a-z][a-z-]+")
PROSE = {"can", "needs", "reads", "record"}  # as in "this acefl reads format 3"
MODULE_OF = {"forecast": "plan", "on_ray": "run"}  # where a command's file has another name

GROUP = typer.main.get_command(app)
OPTIONS = {
    name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    | {"--help"}
    for name, command in GROUP.commands.items()  # type: ignore[attr-defined]
}
ANY = set().union(*OPTIONS.values()) | {"--version", "--install-completion"}


def messages(path: Path) -> list[str]:
    """The strings of a file but for docstrings, with a blank for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "_" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            found.append(node.value)
    return found


def unknown(text: str, module: str) -> list[str]:
    """The commands and options in a message that do not exist: an option belongs to the command named before it."""
    command, wrong = MODULE_OF.get(module, module), []
    for line in ELSEWHERE.sub("", text).splitlines():
        for part in re.split(r"(?=\bacefl [a-z])", line):
            named = COMMAND.match(part)
            if named and named[1] not in {*OPTIONS, *PROSE}:
                wrong.append(named[0])
            allowed = OPTIONS.get(named[1] if named else command, ANY)
            wrong += [option for option in OPTION.findall(part) if option not in allowed]
    return wrong


def test_every_command_and_option_that_a_message_names_exists() -> None:
    for path in SOURCE.rglob("*.py"):
        if path not in OTHER_PROGRAMS:
            for text in messages(path):
                assert not unknown(text, path.stem), f"{path}: {text!r}"


def test_every_command_line_in_the_docs_is_one_that_exists() -> None:
    """In the README, the docs and the examples' pages: what follows `$ acefl`, and `acefl NAME` in code style."""
    root = Path(__file__).parents[1]
    hidden = {name for name, command in GROUP.commands.items() if command.hidden}  # type: ignore[attr-defined]
    for page in (root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for command in re.findall(r"^\$ (acefl .*)$|`(acefl [a-z][^`]*)`", text, re.MULTILINE):
            line = "".join(command)
            assert not unknown(line, ""), f"{page}: {line}"
            assert COMMAND.match(line)[1] not in hidden, f"{page}: {line} was removed"  # type: ignore[index]


def test_what_does_not_exist_is_found() -> None:
    assert unknown("try acefl comparison --task digits", "record") == ["acefl comparison"]
    assert unknown("give its folder (--data)", "compare") == ["--data"]
    assert unknown("or acefl compare --data FOLDER", "hub") == ["--data"]
    assert not unknown("or acefl reproduce --data FOLDER", "hub")
