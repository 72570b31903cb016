"""What `import acefl` gives, and what it must not cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import acefl
from acefl.core.errors import AceflError, InvalidInput, NothingInFlight

SOURCE = Path(acefl.__file__).parent


def sort_key(name: str) -> tuple[int, str]:
    """Constants and acronyms, then classes, then functions: the order ruff keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def python(code: str) -> str:
    """What a fresh interpreter prints: nothing that a test imported before is there."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE.parent)}
    )
    return done.stdout.strip()


def test_all_is_sorted_and_complete() -> None:
    assert acefl.__all__ == sorted(set(acefl.__all__), key=sort_key)
    assert dir(acefl) == sorted(acefl.__all__)
    assert set(acefl._HOME) <= set(acefl.__all__)


def test_type_checkers_see_the_same_names_and_no_others() -> None:
    """A `__getattr__` that they saw would make any name there is, and Any."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(acefl.__all__) | set(acefl._MODULES)
    seen = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert seen == {"__dir__"}


def test_every_name_resolves_to_what_it_says() -> None:
    for name in acefl.__all__:
        value = getattr(acefl, name)
        assert value.__name__.rpartition(".")[2] == name
        assert value.__doc__, f"{name} says nothing about itself"


def test_unknown_names_are_unknown() -> None:
    assert not hasattr(acefl, "Ace")


def test_importing_it_brings_not_even_torch() -> None:
    assert python("import acefl, sys; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_a_star_import_gives_the_public_names_and_brings_no_heavy_library() -> None:
    heavy = "{'pandas', 'flwr', 'flwr_datasets', 'datasets', 'numba', 'sklearn', 'ray', 'pyarrow'}"
    names, brought = python(
        "from acefl import *; print(*sorted(name for name in dir() if name[0] != '_'));"
        f"import sys; print({heavy} & set(sys.modules))"
    ).splitlines()
    assert names.split() == sorted(acefl.__all__)
    assert brought == "set()"


def test_one_tree_of_errors() -> None:
    assert issubclass(InvalidInput, AceflError)
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(NothingInFlight, AceflError)


def test_one_version() -> None:
    assert version("acefl") == acefl.__version__


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_nothing_is_ever_unpickled() -> None:
    """House rule 13, for our own code: no pickle, no torch.load, no numpy pickles."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "dill", "cloudpickle", "joblib"}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("pickle", "dill", "cloudpickle", "joblib"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "pd.read_pickle"):
                raise AssertionError(f"{path}: {ast.unparse(node)}")


def test_nothing_that_lies_in_a_folder_is_run() -> None:
    """Own rules are imported by the name a person gives (`acefl.core.own`); no other file becomes code."""
    forbidden = {"exec", "eval", "compile", "__import__", "spec_from_file_location", "exec_module", "run_path"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                bare = called if isinstance(node.func, ast.Name) else called.rpartition(".")[2]
                method = isinstance(node.func, ast.Attribute) and bare in ("eval", "compile")  # of a module, a pattern
                assert method or bare not in forbidden, f"{path}: {ast.unparse(node)}"
                touches_path = called.startswith("sys.path.")
                assert not touches_path or path.name == "own.py", f"{path}: {ast.unparse(node)}"
