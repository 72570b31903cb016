"""The log of sent tasks keeps every line that was written whole, over any number of lives and a cut in the last."""

from __future__ import annotations

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
