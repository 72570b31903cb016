"""The directory of a run in progress: one writer, checkpoints inside, and in the end the record of the finished run.

`DIR/checkpoint/` is there from the start of a run to its end. Whoever holds the lock in it may write. The record (see
`acefl.runs.record`) is written beside and moved to `DIR` file by file, `summary.json` last; then `DIR/checkpoint/`
goes. So whenever the process is killed, `DIR` holds either checkpoints to go on from or a complete record.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from acefl.core.errors import InvalidInput
from acefl.core.files import CHECKPOINT, check_replaceable, sync_directory
from acefl.core.types import State
from acefl.runs.checkpoint import Checkpoints
from acefl.runs.record import JOURNAL, Run
from acefl.runs.sendlog import SendLog

_LOCK, _SENT, _RECORD, _DONE = "lock", "sent", "record", ".checkpoint-done"

log = logging.getLogger(__name__)


class RunDirectory:
    """A directory that this process alone may write. Made by `start` or `reopen`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path / CHECKPOINT
        self._checkpoints = Checkpoints(self._folder)
        self._failing = False

    def begin(self, state: State) -> None:
        """Write the first checkpoint; without it a run is not worth starting, so errors are raised."""
        self._checkpoints.save(state)
        sync_directory(self._path)
        sync_directory(self._path.parent)

    def save(self, state: State) -> bool:
        """Write a checkpoint; whether it was written. If not, the last good one stays, and the run goes on."""
        try:
            self._checkpoints.save(state)
        except OSError as error:
            if not self._failing:
                log.warning("cannot write a checkpoint to %s (%s): the last good one stays", self._folder, error)
            self._failing = True
        else:
            self._failing = False
        return not self._failing

    def send_log(self) -> SendLog:
        """The note of whom tasks were sent to, from the start of the run on, however often it was interrupted."""
        return SendLog(self._folder / _SENT)

    def load(self) -> State:
        """The last good state."""
        return self._checkpoints.load()

    def finish(self, run: Run) -> None:
        """Replace the checkpoints by the finished run's record."""
        fresh = self._folder / _RECORD
        shutil.rmtree(fresh, ignore_errors=True)
        run.save(fresh)
        for name in (
            "summary.json",
            "report.html",
            JOURNAL,
        ):  # of an earlier run: from here on its record is not complete
            (self._path / name).unlink(missing_ok=True)
        for file in sorted(fresh.iterdir(), key=lambda file: (file.name == "summary.json", file.name)):
            with open(file, "rb") as content:
                os.fsync(content.fileno())
            file.rename(self._path / file.name)
        sync_directory(self._path)
        done = self._path / _DONE
        shutil.rmtree(done, ignore_errors=True)
        self._folder.rename(done)
        shutil.rmtree(done, ignore_errors=True)


@contextmanager
def start(directory: str | os.PathLike[str]) -> Iterator[RunDirectory]:
    """Claim a directory for a new run; one that holds an interrupted run, or what is not ours, is refused."""
    path = Path(directory)
    folder = path / CHECKPOINT
    if not (folder / _LOCK).exists():
        check_replaceable(path)
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        claimed = RunDirectory(path)
        if claimed._checkpoints.files:
            raise InvalidInput(f"{path} holds an interrupted run; resume it, or remove {folder}")
        yield claimed


@contextmanager
def reopen(directory: str | os.PathLike[str]) -> Iterator[RunDirectory | None]:
    """Claim the directory of an interrupted run; None if there is nothing to resume, since the run has finished."""
    path = Path(directory)
    folder = path / CHECKPOINT
    if not (folder / _LOCK).exists():
        if not (path / "summary.json").exists():
            raise InvalidInput(f"{path} holds no run, neither an interrupted nor a finished one")
        shutil.rmtree(path / _DONE, ignore_errors=True)
        yield None
        return
    with locked(folder):
        claimed = RunDirectory(path)
        if not claimed._checkpoints.files:
            raise InvalidInput(f"the run in {path} was interrupted before it began; start it again")
        yield claimed


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            raise InvalidInput(f"{folder.parent} is being written by another run (process {owner})") from None
        if not _is_still(folder / _LOCK, handle):
            raise InvalidInput(f"a run in {folder.parent} has just finished; try again")
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    """Whether the file that was opened is the one that is there now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(handle))
    return False
