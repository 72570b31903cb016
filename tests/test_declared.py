"""What is imported is declared: in the dependencies, or in an extra, and then it is imported only when asked for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import acefl

SOURCE = Path(acefl.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

DISTRIBUTION = {"PIL": "pillow", "sklearn": "scikit-learn"}  # others are called as they are imported
WITH_TORCH = {"triton"}  # a part of torch's builds for GPUs, never required: `acefl.core.kernels` looks for it
WITH_NOTEBOOKS = {"IPython"}  # is there where a notebook runs, and imported only then
LOADED_LAST = {
    "fleets/flower": "flwr",
    "flower/serverapp.py": "flwr",
    "core/kernels/gpu.py": "triton",
}  # imported by nothing but what needs them


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", line)[0] for line in requirements}  # type: ignore[index]


CORE = names(PROJECT["dependencies"])
EXTRAS = {extra: names(own) for extra, own in PROJECT["optional-dependencies"].items() if extra not in ("dev", "docs")}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Distributions that a file imports, and whether as soon as the file itself is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        for module in found:
            top = module.partition(".")[0]
            if top not in (*sys.stdlib_module_names, "acefl"):
                yield DISTRIBUTION.get(top, top.replace("_", "-")), id(node) not in late


def test_every_import_is_declared_and_those_of_extras_are_late() -> None:
    seen = set()
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        for name, at_once in imports(path):
            seen.add(name)
            optional = set().union(*EXTRAS.values()) | WITH_TORCH | WITH_NOTEBOOKS
            assert name in CORE | optional, f"{path} imports {name}, which pyproject.toml does not declare"
            own = any(place.startswith(start) and name == whose for start, whose in LOADED_LAST.items())
            assert name in CORE or not at_once or own, f"{path} imports {name}, of an extra, whenever it is imported"
    assert {"torch", "pillow", "flwr", "transformers"} <= seen


def test_every_dependency_is_imported() -> None:
    used = {name for path in SOURCE.rglob("*.py") for name, _ in imports(path)}
    assert used >= CORE


def test_what_test_install_runs_is_there() -> None:
    """`make test-install` names test files; one that has moved would be said only after minutes of installing."""
    tests = Path(__file__).parent
    tree = ast.parse((tests / "install" / "check.py").read_text(encoding="utf-8"))
    constants = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("TESTS", "EXTRAS")
    }
    named = [*constants["TESTS"], *constants["EXTRAS"].values()]
    assert named
    for name in named:
        file, _, test = name.partition("::")
        assert f"def {test}" in (tests / file).read_text(encoding="utf-8"), name
        assert "[" not in test, f"{name}: the ids of parameters change"
