"""Clients by name: one way to write a name, and one way to find what belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from acefl.core.errors import require

T = TypeVar("T")

_MOST_LISTED = 5


def client_name(label: Any) -> str:
    """A label as a name: text as it is, 12 and 12.0 (as a column with gaps holds it) both as `12`."""
    if isinstance(label, Real) and not isinstance(label, Integral) and float(label).is_integer():
        return str(int(float(label)))
    return str(label)


def listed(names: Iterable[str]) -> str:
    """Names for a message: the first few, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - _MOST_LISTED:,} more" if len(every) > _MOST_LISTED else ""
    return ", ".join(map(repr, every[:_MOST_LISTED])) + more


def in_order(what: str, found: Mapping[str, T], clients: int, names: Sequence[str] | None) -> list[T]:
    """What was found by name, in the order of the clients; clients without names are called by their numbers.

    A client of whom nothing was found, and a name that no client has, are refused.
    """
    wanted = list(map(str, range(clients))) if names is None else list(names)
    known = set(wanted)
    strangers = [name for name in found if name not in known]
    missing = [name for name in wanted if name not in found]
    called = f"the task's clients are called {listed(wanted)}"
    require(not strangers, f"{what} names {listed(strangers)}, who is no client; {called}")
    require(not missing, f"{what} has nothing for {listed(missing)}; every client needs an entry")
    return [found[name] for name in wanted]
