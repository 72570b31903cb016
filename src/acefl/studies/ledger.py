"""What a study has found out so far, so that the next call with the same settings goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.core.files import JsonLines
from acefl.core.settings import plain

Row = dict[str, Any]


class Ledger:
    """A file of JSON lines: first what the study is, then a row for each job that ended. Without a file, in memory.

    keys: the columns by which a job is known. what: the study in a word, as in "holds no search".
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any], *, keys: Sequence[str], what: str) -> None:
        self._lines = None if path is None else JsonLines(path)
        self._keys = keys
        self.rows: list[Row] = []
        if self._lines is not None and self._lines.path.exists():
            self.rows = self._read(self._lines, plain(header), what)
        elif self._lines is not None:
            self._lines.add(header)
        self._known = {self._key(row): row for row in self.rows}

    def _read(self, lines: JsonLines, header: Row, what: str) -> list[Row]:
        path, read = lines.path, [row for _, row in lines.read()]
        good = bool(read) and all(isinstance(row, dict) for row in read)
        if not good or not all(key in row for row in read[1:] for key in self._keys):
            raise InvalidInput(f"{path} is not the log of a {what}")
        there, *rows = read
        for name in {**there, **header}:
            same = there.get(name) == header.get(name)
            allowed = f"allowed: a new directory, or the same {name}"
            require(same, f"{path.parent} holds the {what} of other settings, such as {name}; {allowed}")
        return rows

    def _key(self, row: Mapping[str, Any]) -> str:
        return json.dumps([plain(row[key]) for key in self._keys], sort_keys=True)

    def find(self, **key: Any) -> Row | None:
        """The row of a job that has ended; None: it has not."""
        return self._known.get(self._key(key))

    def add(self, **row: Any) -> None:
        """Write down what a job found."""
        kept: Row = plain(row) if self._lines is None else self._lines.add(row)
        self.rows.append(kept)
        self._known[self._key(kept)] = kept
