"""What a user hands to a task, in plain values: a record has to say what made a run, and must not change by itself."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any

import torch
from torch import nn

_MOST_NUMBERS = 1000  # of a tensor that is written out; a larger one is named by its content


def described(given: Any) -> Any:
    """A loss, local work or a function as its name and settings; plain values as they are.

    Nothing that differs from one process to the next, such as an address, is in it: `resume` compares descriptions.
    """
    if given is None or isinstance(given, bool | int | float | str):
        return given
    if isinstance(given, torch.Tensor):
        return _tensor(given)
    if isinstance(given, list | tuple):
        return [described(value) for value in given]
    if isinstance(given, dict):
        return {str(name): described(value) for name, value in given.items()}
    if isinstance(given, functools.partial):
        settings = {str(place): described(value) for place, value in enumerate(given.args)}
        return _call(given.func, settings | described(given.keywords))
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
        return _call(type(given), described(fields))
    if isinstance(given, type) or hasattr(given, "__qualname__"):
        return _name(given)
    return _call(type(given), _settings(given))


def _settings(given: object) -> dict[str, Any]:
    """The public attributes that are plain; of a module its tensors too."""
    own = {name: value for name, value in vars(given).items() if not name.startswith("_") and name != "training"}
    settings = {n: v for n, v in own.items() if isinstance(v, bool | int | float | str | torch.Tensor)}
    if isinstance(given, nn.Module):
        settings |= dict(given.named_buffers()) | dict(given.named_parameters())
    return {name: described(value) for name, value in settings.items()}


def _call(what: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {"name": _name(what), **settings}


def _name(what: Any) -> str:
    """As one would import it; torch's own without the module."""
    if not hasattr(what, "__qualname__"):
        return type(what).__qualname__
    module = getattr(what, "__module__", None) or ""
    short = module in ("", "builtins", "__main__") or module.split(".")[0] in ("torch", "acefl")
    return what.__qualname__ if short else f"{module}.{what.__qualname__}"


def _tensor(values: torch.Tensor) -> Any:
    values = values.detach().cpu()
    if values.numel() <= _MOST_NUMBERS:
        return values.tolist()
    content = hashlib.sha256(values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return {"shape": list(values.shape), "sha256": content}
