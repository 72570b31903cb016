"""Whom tasks were sent to, written down before each goes out.

A checkpoint does not know of the tasks that were sent after it. When the server is killed and resumed, their updates
have left the clients all the same, and privacy accounting must count them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self


class SendLog:
    """A file with one line per task: the client's name. It outlives the process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole, newline, _ = path.read_bytes().rpartition(b"\n")  # a line that was cut off: its task was never sent
        os.ftruncate(self._handle, len(whole + newline))
        self.counts = Counter(whole.decode().splitlines())

    def note(self, names: Iterable[str], *, durably: bool = True) -> None:
        """These clients are about to be sent a task each. `durably`: the note survives a loss of power too, for some
        milliseconds' wait."""
        os.write(self._handle, "".join(f"{name}\n" for name in names).encode())
        if durably:
            os.fdatasync(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
