"""Methods and tasks of people's own, by the name of their module: `mypkg.mymodule:MyRule(tau=3)`.

A name is imported only when a person gives it, on the command line, in a grid or in a call. A recorded run says where
its method and its task came from, but reading it back imports nothing: whoever wants to resume it names them again.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from acefl.core.errors import InvalidInput, require
from acefl.core.settings import parse_call

if TYPE_CHECKING:
    from acefl.core.rule import Method

_EXAMPLE = {"method": "mypkg.mymodule:MyRule(tau=3)", "task": "mypkg.mymodule:make_task(batch=8)"}


def is_own(text: str) -> bool:
    """Whether the text names a module: a colon that is not inside a setting."""
    return ":" in text.partition("(")[0]


def parse_own(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """`module:name(setting=value)` as the place, `module:name`, and the settings. what: method or task."""
    module, _, rest = text.strip().partition(":")
    called = parse_call(rest)
    if called is None or not all(part.isidentifier() for part in module.split(".")):
        raise InvalidInput(f"{what} is {text!r}; allowed: a module, a colon and a name, as in {_EXAMPLE[what]!r}")
    name, settings = called
    return f"{module}:{name}", settings


def own_method(text: str) -> Method:
    """The settings that `module:Name(setting=value)` names; the current directory is importable, as for `python -m`."""
    place, settings = parse_own(text, "method")
    found = _imported(place, "a class of settings", "method")
    is_rule = isinstance(found, type) and hasattr(found, "absorb")
    require(not is_rule, f"{place} is a rule; allowed: the settings that build it, a class with build()")
    good = isinstance(found, type) and hasattr(found, "build")
    require(good, f"{place} is not a method; allowed: a class of settings with build(), see Adding a rule")
    check_settings(place, found, settings)
    built: Method = found(**settings)
    return built


def own_function(place: str) -> Callable[..., Any]:
    """What makes a task: the function (or class) at `module:name`."""
    found: Callable[..., Any] = _imported(place, "a function that makes a task", "task")
    require(callable(found), f"{place} is not a function; allowed: one that makes a task")
    return found


def check_settings(place: str, called: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that a call would not take, before it is made: a TypeError from within is another matter."""
    try:
        inspect.signature(called).bind(**settings)
    except TypeError as problem:
        allowed = ", ".join(inspect.signature(called).parameters) or "none"
        raise InvalidInput(f"{place}: {problem}; allowed: {allowed}") from None


def origin(rule: Method) -> str:
    """Where a method of somebody's own can be imported from, as `own_method` takes it."""
    return f"{type(rule).__module__}:{type(rule).__qualname__}"


def _imported(place: str, wanted: str, what: str) -> Any:
    module, _, name = place.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # for good: worker processes take over this path, and must find the module too
    try:
        loaded = importlib.import_module(module)
    except Exception as problem:  # whatever somebody's own file raises while it is being loaded
        raise InvalidInput(f"cannot import {module}: {type(problem).__name__}: {problem}") from problem
    found = getattr(loaded, name, None)
    require(found is not None, f"{module} has no {name!r}; allowed: {wanted}, as in {_EXAMPLE[what]!r}")
    return found
