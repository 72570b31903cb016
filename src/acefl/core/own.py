"""Methods of people's own, by the name of their module: `mypkg.mymodule:MyRule(tau=3)`.

A name is imported only when a person gives it, on the command line or in a grid. A recorded run says where its method
came from, but reading it back imports nothing: whoever wants to resume it names the method again.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from acefl.core.errors import InvalidInput, require
from acefl.core.settings import parse_call

if TYPE_CHECKING:
    from acefl.core.rule import Method

_EXAMPLE = "mypkg.mymodule:MyRule(tau=3)"


def is_own(text: str) -> bool:
    """Whether the text names a module: a colon that is not inside a setting."""
    return ":" in text.partition("(")[0]


def own_method(text: str) -> Method:
    """The settings that `module:Name(setting=value)` names; the current directory is importable, as for `python -m`."""
    module, _, rest = text.strip().partition(":")
    called = parse_call(rest)
    path = module.split(".")
    if called is None or not all(part.isidentifier() for part in path):
        raise InvalidInput(f"method is {text!r}; allowed: a module, a colon and a name, as in {_EXAMPLE!r}")
    name, settings = called
    kind = _find(module, name)
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as problem:
        allowed = ", ".join(inspect.signature(kind).parameters) or "none"
        raise InvalidInput(f"{module}:{name}: {problem}; allowed: {allowed}") from None
    built: Method = kind(**settings)
    return built


def origin(rule: Method) -> str:
    """Where a method of somebody's own can be imported from, as `own_method` takes it."""
    return f"{type(rule).__module__}:{type(rule).__qualname__}"


def _find(module: str, name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # for good: worker processes take over this path, and must find the module too
    try:
        loaded = importlib.import_module(module)
    except Exception as problem:  # whatever somebody's own file raises while it is being loaded
        raise InvalidInput(f"cannot import {module}: {type(problem).__name__}: {problem}") from problem
    found = getattr(loaded, name, None)
    require(found is not None, f"{module} has no {name!r}; allowed: a class of settings, as in {_EXAMPLE!r}")
    is_rule = isinstance(found, type) and hasattr(found, "absorb")
    require(not is_rule, f"{module}:{name} is a rule; allowed: the settings that build it, a class with build()")
    good = isinstance(found, type) and hasattr(found, "build")
    require(good, f"{module}:{name} is not a method; allowed: a class of settings with build(), see Adding a rule")
    return found
