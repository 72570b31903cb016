"""Worker processes outlive nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
        assert all(map(alive, workers))
        os.kill(parent.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(alive, workers)))
    finally:
        parent.kill()
        parent.wait()
        for path in folder.iterdir():
            if alive(int(path.name)):
                os.kill(int(path.name), signal.SIGKILL)
