"""How people name a thing with settings: `ACE`, `ACED(tau=300)`, `cifar10(folder='data', device='cuda')`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from acefl.errors import InvalidInput


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
    return (node.id, settings) if isinstance(node, ast.Name) else None


def named(what: str, kinds: Mapping[str, type[Any]], text: str, example: str) -> Any:
    """What a person named, built: one of these kinds, with settings as in the example."""
    called = parse_call(text)
    if called is None:
        raise _unknown(what, kinds, text, example)
    return make(what, kinds, *called, example)


def make(what: str, kinds: Mapping[str, type[Any]], name: str, settings: dict[str, Any], example: str) -> Any:
    """One of these kinds by its name, in whatever case, refusing settings that it does not know."""
    kind = {known.lower(): cls for known, cls in kinds.items()}.get(name.lower())
    if kind is None:
        raise _unknown(what, kinds, name, example)
    allowed = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        if setting not in allowed:
            raise InvalidInput(f"{kind.__name__} has no setting {setting!r}; allowed: {', '.join(allowed) or 'none'}")
    return kind(**settings)


def record_of(thing: Any) -> dict[str, Any]:
    """A frozen dataclass by its name and settings: what `make` builds it from again."""
    return {"name": type(thing).__name__, **dataclasses.asdict(thing)}


def _unknown(what: str, kinds: Mapping[str, type[Any]], text: str, example: str) -> InvalidInput:
    return InvalidInput(f"unknown {what} {text!r}; allowed: {', '.join(kinds)}, with settings as in {example!r}")
