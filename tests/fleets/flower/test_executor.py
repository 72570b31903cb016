"""ClientApps forked from one process with everything imported: what a fork may know, and what the parent may learn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acefl import InvalidInput
from acefl.flower import executor

pytest.importorskip("flwr")

LIMIT = 60.0


def finish(work: Callable[[], None]) -> list[str]:
    """Fork, wait for the end, and say what was imported."""
    child = executor.fork(work)
    until = time.monotonic() + LIMIT
    while not child.is_over():
        assert time.monotonic() < until
        time.sleep(0.01)
    return child.imported()


def alone(program: str, *paths: Path) -> str:
    """Run a program in a process of its own, as the executor is: what it imports stays out of the tests."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_fork_draws_numbers_of_its_own(tmp_path: Path) -> None:
    """numpy is seeded when it is imported, which forks do not do."""

    def draw(name: str) -> Callable[[], None]:
        return lambda: (tmp_path / name).write_text(json.dumps(np.random.random(4).tolist())) and None

    np.random.seed(0)
    finish(draw("one"))
    finish(draw("two"))
    drawn = [json.loads((tmp_path / name).read_text()) for name in ("one", "two")]
    assert drawn[0] != drawn[1]
    assert np.random.random() == np.random.RandomState(0).random(), "a fork changed the parent's numbers"


def test_a_fork_that_ends_badly_or_is_killed_says_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    def raising() -> None:
        raise ValueError("as ClientApps do")

    def killed() -> None:
        os.kill(os.getpid(), 9)

    assert finish(raising) == []
    assert finish(killed) == []
    finish(lambda: (tmp_path / "there").touch())
    assert (tmp_path / "there").exists()


def test_what_an_app_imports_is_imported_for_the_next_one_but_never_the_app_itself(tmp_path: Path) -> None:
    installed, home = tmp_path / "site", tmp_path / "home"
    (home / "apps" / "one").mkdir(parents=True)
    installed.mkdir()
    (installed / "some_library.py").write_text("LOADED = True\n")
    (home / "apps" / "one" / "the_app.py").write_text("import some_library\n")
    told = alone(
        f"""
        import os, sys, time
        os.environ["FLWR_HOME"] = {str(home)!r}
        from acefl.flower import executor

        def app():
            sys.path.insert(0, {str(home / "apps" / "one")!r})
            import the_app

        known = set(sys.modules)
        child = executor.fork(app)
        while not child.is_over():
            time.sleep(0.01)
        executor.learn(child.imported(), known)
        print("some_library" in sys.modules, "the_app" in sys.modules)
        """,
        installed,
    )
    assert told.split() == ["True", "False"]


def test_a_library_that_starts_threads_is_found_out(tmp_path: Path) -> None:
    """A process with threads must not be forked: the executor starts anew without learning."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    told = alone(
        """
        from acefl.flower import executor
        try:
            executor.learn(["threaded"], set())
        except executor._Threads as error:
            print("found out")
        """,
        tmp_path,
    )
    assert told.strip() == "found out"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--runtime-api-address", "node.example:9094"], "only addresses of this machine"),
        (["--runtime-api-address", "9094"], "allowed: host:port"),
        (["--runtime-api-address", "127.0.0.1:9094", "--root-certificates", "nowhere.pem"], "no file nowhere.pem"),
        (["--runtime-api-address", "127.0.0.1:9094", "--every", "0"], "above 0 seconds"),
        (["--runtime-api-address", "127.0.0.1:9094", "--preload", "no_such_module"], "cannot be imported"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        executor.main(arguments)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert says in line
    assert line.count("\n") == 1


def test_versions_of_flower_that_were_not_tried_are_refused_with_a_way_out() -> None:
    executor.check_version("1.41.0")
    for version in ("1.40.2", "1.42.0", "2.0.0", "1.410.0"):
        with pytest.raises(InvalidInput, match="flower-superexec"):
            executor.check_version(version)
