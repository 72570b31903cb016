"""The log of sent tasks keeps every line that was written whole, over any number of lives and a cut in the last."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from acefl.runs.sendlog import SendLog


@pytest.mark.parametrize("cut", range(8))
def test_what_was_noted_is_there_in_the_next_life(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "sent"
    with SendLog(path) as log:
        assert not log.counts
        log.note(["12", "7"])
        log.note(["12"], durably=False)
    whole = path.read_bytes()
    assert len(whole) == 8
    path.write_bytes(whole[: len(whole) - cut])
    kept = Counter((whole[: len(whole) - cut].rpartition(b"\n")[0]).decode().split())
    with SendLog(path) as log:
        assert log.counts == kept
        log.note(["3"])
    with SendLog(path) as log:
        assert log.counts == kept + Counter(["3"]), "a line that was cut off became part of the next"


def test_a_full_disk_makes_tasks_wait_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, write, room = tmp_path / "sent", os.write, iter([0, 2, 0, 100])

    def full(handle: int, lines: bytes) -> int:
        left = next(room)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, lines[:left])

    monkeypatch.setattr("acefl.runs.sendlog.TRIES_EVERY", 0.0)
    with SendLog(path) as log:
        log.note(["5"])
        monkeypatch.setattr(os, "write", full)
        log.note(["123", "7"])
    assert path.read_bytes() == b"5\n123\n7\n"
    assert [record.message for record in caplog.records].count(
        "the disk is full: tasks wait until there is room to note them"
    ) == 1


def test_other_errors_are_not_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(handle: int, lines: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with SendLog(tmp_path / "sent") as log:
        monkeypatch.setattr(os, "write", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.note(["5"])
