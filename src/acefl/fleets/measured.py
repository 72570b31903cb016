"""Durations that somebody measured: by client name or number, from Python, a DataFrame or a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.core.names import client_name, in_order

Entry = float | tuple[float, ...]  # a client's mean task time, or the durations of its tasks in turn
Given = Mapping[str, Entry] | Sequence[Entry]  # by name, or in the order of the clients

_FORMS = "a number or a list of them per client, by name; or a table with columns client and duration"


def positive(name: str, value: float) -> None:
    require(math.isfinite(value) and value > 0, f"{name} is {value}; allowed: a finite number above 0")


def measured(given: Any) -> dict[str, Entry] | tuple[Entry, ...]:
    """Durations as plain values: of a dict or a Series by name, of a DataFrame one list per client, of a list in the
    order of the clients."""
    if hasattr(given, "columns"):
        given = _by_client(given)
    elif hasattr(given, "to_dict"):
        given = given.to_dict() if given.index.is_unique else _lists(given.items())
    if isinstance(given, Mapping):
        require(bool(given), f"durations is empty; allowed: {_FORMS}")
        return {client_name(client): _entry(repr(client_name(client)), own) for client, own in given.items()}
    if isinstance(given, str | bytes | Path) or not isinstance(given, Sequence):
        raise InvalidInput(f"durations is {given!r}; allowed: {_FORMS} (a CSV file is given as trace=)")
    return tuple(_entry(f"client {client}", own) for client, own in enumerate(given))


def _by_client(table: Any) -> dict[Any, list[float]]:
    columns = list(table.columns)
    require({"client", "duration"} <= set(columns), f"durations has columns {columns}; allowed: client, duration")
    return _lists(zip(table["client"], table["duration"], strict=True))


def _lists(pairs: Iterable[tuple[Any, float]]) -> dict[Any, list[float]]:
    """Every client's durations, in their order."""
    rows: dict[Any, list[float]] = {}
    for client, duration in pairs:
        rows.setdefault(client, []).append(duration)
    return rows


def _entry(whose: str, own: Any) -> Entry:
    alone = isinstance(own, int | float) or getattr(own, "ndim", 1) == 0
    if isinstance(own, str):
        raise InvalidInput(f"durations of {whose} are {own!r}; allowed: {_FORMS}")
    try:
        values = (float(own),) if alone else tuple(float(duration) for duration in own)
    except (TypeError, ValueError):
        raise InvalidInput(f"durations of {whose} are {own!r}; allowed: {_FORMS}") from None
    require(bool(values), f"durations has no duration for {whose}; every client needs at least one")
    for value in values:
        positive(f"durations: that of {whose}", value)
    return values[0] if alone else values


def ordered(given: Given, clients: int, names: Sequence[str] | None) -> list[Entry]:
    """The durations in the order of the clients."""
    if isinstance(given, Mapping):
        return in_order("durations", given, clients, names)
    require(len(given) == clients, f"durations is of {len(given)} clients; allowed: the task's {clients}")
    return list(given)


def read_trace(
    trace: str | Path | Sequence[Sequence[float]], clients: int, names: Sequence[str] | None = None
) -> list[list[float]]:
    """Every client's task durations, in order: as given, or from a CSV file with columns client,duration.

    In a file clients are named, or numbered where they have no names.
    """
    if not isinstance(trace, str | Path):
        require(len(trace) == clients, f"trace is of {len(trace)} clients; allowed: the task's {clients}")
        return [list(durations) for durations in trace]
    found: dict[str, list[float]] = {}
    for line, client, duration in _rows(trace, numbered=names is None):
        known = names is not None or 0 <= int(client) < clients  # unknown names are refused together
        allowed = "durations above 0" if names is not None else f"clients 0 to {clients - 1}, durations above 0"
        good = known and math.isfinite(duration) and duration > 0
        require(good, f"trace {trace}, line {line}: client {client}, duration {duration}; allowed: {allowed}")
        found.setdefault(client, []).append(duration)
    if names is not None:
        return in_order(f"trace {trace}", found, clients, names)
    for client in map(str, range(clients)):
        require(client in found, f"trace {trace} has no duration for client {client}; every client needs at least one")
    return [found[str(client)] for client in range(clients)]


def _rows(path: str | Path, *, numbered: bool) -> list[tuple[int, str, float]]:
    """Line, client and duration of every row of the file."""
    rows = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"client", "duration"} <= set(reader.fieldnames or ()):
                columns = ",".join(reader.fieldnames or ()) or "none"
                raise InvalidInput(f"trace {path} has columns {columns}; allowed: client,duration")
            for line, row in enumerate(reader, start=2):
                try:
                    client = str(int(row["client"])) if numbered else row["client"].strip()
                    rows.append((line, client, float(row["duration"])))
                except (AttributeError, TypeError, ValueError):
                    what = "client number" if numbered else "client's name"
                    raise InvalidInput(f"trace {path}, line {line}: not a {what} and a duration") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot read trace {path}: {getattr(error, 'strerror', None) or error}") from None
    return rows
