"""Visits that really happened: when each client came and when its update was there, from a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.core.names import client_name, listed

Visit = tuple[str, float, float]  # who, from when, till when

_FORMS = "a table with columns client, start and end, or rows of these three"


def visits_of(given: Any) -> tuple[Visit, ...]:
    """The visits in the order in which they ended, as plain values; one client's may not overlap."""
    if hasattr(given, "columns"):
        columns = list(given.columns)
        require({"client", "start", "end"} <= set(columns), f"visits has columns {columns}; allowed: {_FORMS}")
        given = list(zip(given["client"], given["start"], given["end"], strict=True))
    try:
        rows = [(client_name(client), float(start), float(end)) for client, start, end in given]
    except (TypeError, ValueError):
        raise InvalidInput(f"visits cannot be read; allowed: {_FORMS}, times as numbers") from None
    require(bool(rows), f"visits is empty; allowed: {_FORMS}")
    free: dict[str, float] = {}
    for client, start, end in sorted(rows, key=lambda visit: visit[1:]):
        known = math.isfinite(end) and 0 <= start <= end
        require(known, f"visits: {client!r} comes at {start:g} and ends at {end:g}; allowed: 0 <= start <= end")
        apart = start >= free.get(client, 0.0)
        require(
            apart, f"visits: {client!r} comes at {start:g}, before its last visit has ended; allowed: one at a time"
        )
        free[client] = end
    return tuple(sorted(rows, key=lambda visit: (visit[2], visit[1])))


def numbered(visits: Sequence[Visit], clients: int, names: Sequence[str] | None) -> list[tuple[int, float, float]]:
    """The visits in the order in which they began, by the clients' places in the task."""
    called = list(map(str, range(clients))) if names is None else list(names)
    place = {name: client for client, name in enumerate(called)}
    strangers = sorted({client for client, _, _ in visits if client not in place})
    require(not strangers, f"visits names {listed(strangers)}, who is no client; the task's are {listed(called)}")
    return sorted(((place[client], start, end) for client, start, end in visits), key=lambda visit: visit[1:])
