"""What happens to a run as JSON lines, for a log collector: joins, losses, refusals, checkpoints, evaluations.

`observers=[JsonLines("federation.jsonl")]`. Everything that acefl logs is a line with `time`, `level` and `message`;
what an operator acts upon has an `event` and its facts as well:

    {"time": "2026-05-04T10:00:00.123+00:00", "level": "WARNING", "message": "...", "event": "left", "client": 2}
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput
from acefl.runs.observers import Observer

log = logging.getLogger("acefl")


class JsonLines(Observer):
    """Appends what acefl logs, and every evaluation, to a file.

    Args:
        path: The file; it is made with its directory, and appended to by a run that is resumed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._handler = _Handler(open(path, "a", encoding="utf-8"))  # noqa: SIM115  # closed by close
        except OSError as error:
            raise InvalidInput(f"cannot write JSON lines to {os.fspath(path)}: {error.strerror}") from None
        log.addHandler(self._handler)
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(logging.INFO)

    def evaluated(self, row: dict[str, float]) -> None:
        log.info("evaluated at step %d", row.get("step", 0), extra={"facts": {"event": "evaluated", **row}})

    def close(self) -> None:
        """Stop writing."""
        log.removeHandler(self._handler)
        self._handler.stream.close()


class _Handler(logging.StreamHandler[Any]):
    """One JSON object per record; written at once, so that a crash loses nothing."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["error"] = repr(record.exc_info[1])
        return json.dumps({name: _plain(value) for name, value in facts.items()})


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN, and nothing that is no number or text."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value if value is None or isinstance(value, int | str | bool) else str(value)
