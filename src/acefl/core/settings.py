"""Settings and plain values, both ways: what a person types, what a record holds, a label, and JSON.

Settings are frozen dataclasses. A person names them as a call: `ACE`, `ACED(tau=300)`, `Cosine(warmup=0.1)`. A record
holds their name and fields as JSON.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from acefl.core.errors import InvalidInput, require

T = TypeVar("T")

_SPEEDS = ("delay", "spread", "slow", "fixed")  # settings of a scenario, which measured durations replace


def replaced_settings(scenario: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of a scenario without effect, since a trace, visits, durations or devices say how long tasks take."""
    if scenario.get("trace") or scenario.get("visits"):
        return ("delay", "law", "shape", *_SPEEDS[1:])
    if scenario.get("devices"):
        return ("spread",)
    own = scenario.get("durations") or ()
    law = any(isinstance(entry, Real) for entry in (own.values() if isinstance(own, Mapping) else own))
    return (*_SPEEDS, *(() if law else ("law", "shape"))) if own else ()


def parse_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and its settings, which are plain values; None if the text is not of this form."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested too deeply for Python's parser
        return None
    settings: dict[str, Any] = {}
    if isinstance(node, ast.Call) and not node.args and all(word.arg for word in node.keywords):
        try:
            settings = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        except (ValueError, TypeError, RecursionError):
            raise InvalidInput(f"{text!r} has a setting that is not a plain value such as 5 or 'sqrt'") from None
        node = node.func
    return (ast.unparse(node), settings) if _is_name(node) else None


def _is_name(node: ast.expr) -> bool:
    """Whether it is a name, or several with dots between them."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_name(node.value))


def build(kind: type[T], settings: Mapping[str, Any], called: str | None = None, **fixed: Any) -> T:
    """The dataclass with these settings; one that it does not have, or that is fixed, is refused by one line."""
    name = called or kind.__name__
    allowed = [field.name for field in dataclasses.fields(kind) if field.name not in fixed]  # type: ignore[arg-type]
    for setting in settings:
        require(setting in allowed, f"{name} has no setting {setting!r}; allowed: {', '.join(allowed) or 'none'}")
    try:
        return kind(**settings, **fixed)
    except TypeError as error:
        raise InvalidInput(f"{name}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Registry(Generic[T]):
    """All settings of one kind, such as the methods, by name."""

    what: str  # method, optimizer, ...
    kinds: Mapping[str, type[Any]]
    example: str

    def parse(self, text: str) -> T:
        """From what a person types: `aced(tau=300)`."""
        called = parse_call(text)
        if called is None:
            raise self._unknown(text)
        return self.build(*called)

    def build(self, name: str, settings: Mapping[str, Any]) -> T:
        """By name, in whatever case, and fields."""
        kind: type[T] | None = {known.lower(): kind for known, kind in self.kinds.items()}.get(name.lower())
        if kind is None:
            raise self._unknown(name)
        return build(kind, settings)

    def from_record(self, record: Mapping[str, Any]) -> T:
        """From what `to_record` made."""
        settings = dict(record)
        return self.build(settings.pop("name"), settings)

    def _unknown(self, text: str) -> InvalidInput:
        allowed = f"{', '.join(self.kinds)}, with settings as in {self.example!r}"
        return InvalidInput(f"unknown {self.what} {text!r}; allowed: {allowed}")


def settings_of(thing: Any) -> dict[str, Any]:
    """The fields by name; empty for a user's own class that is no dataclass."""
    return dataclasses.asdict(thing) if dataclasses.is_dataclass(thing) and not isinstance(thing, type) else {}


def to_record(thing: Any) -> dict[str, Any]:
    """Name and fields, from which `Registry.from_record` builds it again."""
    return {"name": type(thing).__name__, **settings_of(thing)}


def step_record(optimizer: Any, schedule: Any) -> dict[str, Any]:
    """How the server steps, for a run's record; what was not given is left out."""
    given = {"optimizer": optimizer, "schedule": schedule}
    return {name: to_record(value) for name, value in given.items() if value is not None}


def label(thing: Any) -> str:
    """The name with the settings that differ from their defaults: `ACED(tau=300)`."""
    if not dataclasses.is_dataclass(thing):
        return type(thing).__name__
    changed = [
        f"{field.name}={getattr(thing, field.name)!r}"
        for field in dataclasses.fields(thing)
        if getattr(thing, field.name) != field.default
    ]
    return type(thing).__name__ + (f"({', '.join(changed)})" if changed else "")


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinity, which it has not, become null, and what it does not know its text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)
