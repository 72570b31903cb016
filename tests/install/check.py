"""The wheel in fresh environments, as users get it: without the lock, outside the checkout. Run by `make test-install`.

Two per Python: the newest of everything that the bounds in pyproject.toml allow, and the lowest. torch comes first and
in its lowest version in both: a pinned `torch==` also takes a CPU build where pip knows of one, and any other version
may be gigabytes. So newer versions of torch are not tried here.

In each: `pip check`, `acefl doctor`, a small comparison and tests that need no extra; then the small extras and theirs.
Not tried here: `flower`, which allows one minor version and pins Ray with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lowest import lowest

ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13")
COMPARISON = ("compare", "--clients=10", "--arrivals=200", "--seeds=1", "--method=ACE", "--method=FedBuff")
TESTS = (
    "test_package.py",  # every public name
    "cli/test_cli.py",  # typer, rich
    "core/test_kernels.py::test_numba_equals_numpy",  # numba, llvmlite
    "runs/test_record.py",  # pandas, pyarrow, safetensors
    "tasks/test_cifar.py",  # pillow
    "tasks/test_partition.py",  # datasets, flwr-datasets
    "rules/test_contract.py",
    "report/test_report.py",  # jinja2
)
EXTRAS = {"text": "tasks/test_news20.py", "privacy": "tasks/test_privacy.py", "tensorboard": "runs/test_loggers.py"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the wheel without the lock, and try it.")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="NAME", help="interpreters (%(default)s)")
    parser.add_argument("--versions", nargs="+", default=["newest", "lowest"], choices=["newest", "lowest"])
    chosen = parser.parse_args()
    pythons = [name for name in chosen.python if _works(name)]
    for missing in sorted(set(chosen.python) - set(pythons)):
        print(f"not tried: {missing} is not on the PATH", flush=True)
    if not pythons:
        print(f"error: none of {', '.join(chosen.python)} is on the PATH", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="acefl-install-") as name:
        outside = Path(name)
        _run(pythons[0], "-m", "pip", "wheel", "-qq", "--no-deps", "-w", outside, ROOT, cwd=outside)
        [wheel] = outside.glob("acefl-*.whl")
        (outside / "lowest.txt").write_text("\n".join(lowest(ROOT / "pyproject.toml")), encoding="utf-8")
        shutil.copy(ROOT / "pyproject.toml", outside)
        shutil.copy(ROOT / "examples" / "hospitals.py", outside)
        shutil.copytree(ROOT / "tests", outside / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for python in pythons:
            for versions in chosen.versions:
                started = time.monotonic()
                _try(python, versions, wheel, outside)
                print(f"passed: {python}, {versions} versions, {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _try(python: str, versions: str, wheel: Path, outside: Path) -> None:
    """One environment, made and thrown away."""
    print(f"{python}, {versions} versions ...", flush=True)
    environment = outside / "environment"
    _run(python, "-m", "venv", "--clear", environment, cwd=outside)
    own = environment / "bin" / "python"
    constraints = (outside / "lowest.txt").read_text(encoding="utf-8").split()
    torch = next(line for line in constraints if line.startswith("torch=="))
    install = [own, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check"]
    _run(*install, torch, cwd=outside)
    limits = ["-c", outside / "lowest.txt"] if versions == "lowest" else []
    test = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # The copied settings put src/ on the path, which is not here; and a new release may warn of what is to come.
    test += ["-o", "pythonpath=.", "-o", "filterwarnings=default"]
    _run(*install, *limits, torch, wheel, "pytest", "hypothesis", cwd=outside)
    _run(own, "-m", "pip", "check", cwd=outside)
    installed = f"import acefl, sys; sys.exit(not acefl.__file__.startswith({str(environment)!r}))"
    _run(own, "-c", installed, cwd=outside)
    acefl = environment / "bin" / "acefl"
    _run(acefl, "doctor", cwd=outside)
    _run(acefl, *COMPARISON, "--out", environment / "comparison", cwd=outside)
    _run(own, outside / "hospitals.py", environment / "hospitals", cwd=outside)  # one's own work, in 25 lines
    _run(*test, *(f"tests/{name}" for name in TESTS), cwd=outside)
    _run(*install, *limits, torch, f"{wheel}[{','.join(EXTRAS)}]", cwd=outside)
    _run(own, "-m", "pip", "check", cwd=outside)
    _run(*test, *(f"tests/{name}" for name in EXTRAS.values()), cwd=outside)


def _works(python: str) -> bool:
    """A version manager may put a name on the PATH that only says that it is not chosen."""
    return shutil.which(python) is not None and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def _run(*command: str | Path, cwd: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if subprocess.run(command, cwd=cwd, env=environment).returncode:
        raise SystemExit(f"error: failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    sys.exit(main())
