"""Worker processes outlive nobody, and are like processes of their own although they are forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acefl.studies import pools
from acefl.studies.jobs import Job, open_jobs

PROGRAM = """
import os, pathlib, sys, time
from acefl.studies.pools import open_pool


def work(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)


if __name__ == "__main__":
    with open_pool(2) as pool:
        jobs = [pool.submit(work, sys.argv[1]) for _ in range(2)]
        pool.finished(jobs)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "workers"
    program.write_text(PROGRAM)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(program), str(folder)])
    try:
        assert wait_until(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        workers.append(parent_of(workers[0]))  # the process that they are forks of
        assert all(map(alive, workers))
        os.kill(parent.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(alive, workers)))
    finally:
        parent.kill()
        parent.wait()
        for path in folder.iterdir():
            if alive(int(path.name)):
                os.kill(int(path.name), signal.SIGKILL)


def told(_: int) -> tuple[str, float, bool]:
    time.sleep(0.2)  # so that both workers take part
    return os.environ.get("ACEFL_TOLD", ""), float(np.random.rand()), "acefl.core.kernels.cpu" in sys.modules


def test_workers_have_the_environment_of_now_and_random_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    for value in ("first", "second"):  # the second pool's workers are forks of the same process
        monkeypatch.setenv("ACEFL_TOLD", value)
        with open_jobs(2) as jobs:
            found = jobs.run([Job(told, number) for number in range(4)])
        assert {environment for environment, _, _ in found} == {value}
        assert {loaded for *_, loaded in found} == {pools._FORKS}
        drawn |= {number for _, number, _ in found}
    assert len(drawn) == 8
