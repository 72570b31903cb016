"""Whom tasks were sent to, written down before each goes out.

A checkpoint does not know of the tasks that were sent after it. When the server is killed and resumed, their updates
have left the clients all the same, and privacy accounting must count them.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

log = logging.getLogger("acefl")

DISK_FULL = {"facts": {"event": "disk full"}}
FULL = (errno.ENOSPC, errno.EDQUOT)
TRIES_EVERY = 1.0  # seconds


class SendLog:
    """A file with one line per task: the client's name. It outlives the process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole, newline, _ = path.read_bytes().rpartition(b"\n")  # a line that was cut off: its task was never sent
        os.ftruncate(self._handle, len(whole + newline))
        self.counts = Counter(whole.decode().splitlines())

    def note(self, names: Iterable[str], *, durably: bool = True) -> None:
        """These clients are about to be sent a task each. `durably`: the note survives a loss of power too, for some
        milliseconds' wait. While the disk is full nobody is sent anything: this waits until there is room."""
        lines = "".join(f"{name}\n" for name in names).encode()
        before, told = os.fstat(self._handle).st_size, False
        while not self._wrote(lines):
            os.ftruncate(self._handle, before)
            if not told:
                log.warning("the disk is full: tasks wait until there is room to note them", extra=DISK_FULL)
            told = True
            time.sleep(TRIES_EVERY)
        if durably:
            os.fdatasync(self._handle)

    def _wrote(self, lines: bytes) -> bool:
        """Whether all of it was written; False: the disk is full."""
        try:
            return os.write(self._handle, lines) == len(lines)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
