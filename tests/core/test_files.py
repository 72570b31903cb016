"""Files appear whole, and lines that a crash cut off are dropped. Directories: `tests/runs/test_record.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from acefl.core.errors import InvalidInput
from acefl.core.files import JsonLines, atomic_write, read_json, write_json


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note.json"
    write_json(path, {"a": 1})

    def fail(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, "half")
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["note.json"]


def test_what_is_no_json_object_gets_one_line(tmp_path: Path) -> None:
    for content, said in (("[1]", "not a JSON object"), ("{", "not valid JSON")):
        (tmp_path / "note.json").write_text(content)
        with pytest.raises(InvalidInput, match=said):
            read_json(tmp_path / "note.json")


def test_wherever_a_crash_cuts_a_line_off_the_others_are_read_and_more_can_be_added(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "new" / "log.jsonl")
    assert list(lines.read()) == []
    rows = [{"number": number, "text": "é"} for number in range(3)]
    assert [lines.add(row) for row in rows] == rows
    whole = lines.path.read_bytes()
    last = len(json.dumps(rows[-1]).encode()) + 1
    for cut in range(1, last):
        lines.path.write_bytes(whole[:-cut])
        lines.add({"number": 9})
        expected = [*rows, {"number": 9}] if cut == 1 else [*rows[:2], {"number": 9}]
        assert [row for _, row in lines.read()] == expected
