"""The exception tree: everything acefl raises on purpose is an `AceflError`."""

from __future__ import annotations

from collections.abc import Callable


class AceflError(Exception):
    """Root of the tree; catch it to catch whatever acefl raises on purpose."""


class InvalidInput(AceflError, ValueError):
    """A setting, file or argument is wrong: one line naming what is wrong and what is allowed."""


class Interrupted(AceflError):
    """A person ended a run that can be resumed: one line saying how."""


class NothingInFlight(AceflError):
    """No client is at work and none can be sent work, so a run cannot go on."""


def require(condition: bool, message: str) -> None:
    """Raise `InvalidInput(message)` unless the condition holds."""
    if not condition:
        raise InvalidInput(message)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not among the allowed ones, naming all of them."""
    require(value in allowed, f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def require_number(name: str, value: object, holds: Callable[[float], bool], allowed: str) -> None:
    """Refuse what is no finite number, or one for which `holds` is not true."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    require(number and holds(value), f"{name} is {value!r}; allowed: {allowed}")  # type: ignore[arg-type]
