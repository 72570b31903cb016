"""States on their way to files: taken apart into plain JSON and tensors, and reassembled.

A state is what `state_dict()` returns: numbers, strings, tensors, and lists and dicts of them. It is a copy, so that it
does not change while the run continues. A table may be as large as the memory, though: inside `without_copies()` large
parts are not copied. They are read when they are written to a file, under names that say whether they have changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from acefl.core.errors import AceflError
from acefl.core.types import State

_PLAIN = {int, str, bool, type(None)}
_WITHOUT_COPIES: ContextVar[bool] = ContextVar("without_copies", default=False)


class Named(Mapping[str, torch.Tensor]):
    """Tensors that are read when asked for. Within a run a name stands for the same numbers for good."""

    def __init__(self, names: Iterable[str], read: Callable[[str], torch.Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def device(self) -> str:
        """Where the tensors are, all of them: the last one tells, which in a log is the shortest."""
        return self[next(reversed(self._names))].device.type if self._names else "cpu"


@contextmanager
def without_copies() -> Iterator[None]:
    """States taken in here refer to what is large instead of copying it: use them before the run continues."""
    token = _WITHOUT_COPIES.set(True)
    try:
        yield
    finally:
        _WITHOUT_COPIES.reset(token)


def snapshot(names: Iterable[str], read: Callable[[str], torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """A large part of a state, by names that stand for the same numbers for good; copied unless `without_copies()`."""
    return Named(names, read) if _WITHOUT_COPIES.get() else {name: read(name).clone() for name in names}


@runtime_checkable
class HasState(Protocol):
    """What can be saved and loaded: a table, a sum, a rule."""

    def state_dict(self) -> State:
        """Everything that decides how it goes on, as a copy in plain values and tensors."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go on as the one whose state this is."""
        ...


class Stateful:
    """Saves and loads the attributes that `saved` names, in whatever form they have: what changes, and nothing else.

    Attributes may be tensors, numbers, strings, lists, sets of numbers, dicts from numbers, and objects with a state of
    their own. Loading writes into tensors and objects and replaces the rest.
    """

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> State:
        """A copy of the attributes that `saved` names."""
        return {name.lstrip("_"): _copied(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: State) -> None:
        """Set the attributes that `saved` names; it must have been made with the same settings."""
        for name in self.saved:
            own, value = getattr(self, name), state[name.lstrip("_")]
            if isinstance(own, HasState):
                own.load_state_dict(value)
            elif isinstance(own, torch.Tensor):
                own.copy_(value)
            else:
                setattr(self, name, _restored(own, value))


def _copied(value: Any) -> Any:
    if isinstance(value, HasState):
        return value.state_dict()
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return [[key, _copied(part)] for key, part in value.items()]
    if isinstance(value, list):
        return [_copied(part) for part in value]
    return value


def _restored(own: Any, value: Any) -> Any:
    """A saved value as what the attribute holds; lists in a dict are what they were."""
    if isinstance(own, set):
        return set(value)
    if isinstance(own, dict):
        return {key: _owned(part) for key, part in value}
    if isinstance(own, list):
        return [_owned(part) for part in value]
    return value if own is None or value is None else type(own)(value)


def _owned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@dataclass
class Parts:
    """A state taken apart: a skeleton of plain JSON, and by their place in it the tensors and the named tensors."""

    skeleton: Any = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    named: dict[str, Named] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> Parts:
        parts = cls()
        parts.skeleton = parts._take(state, "state")
        return parts

    def _take(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | Real) and not isinstance(value, Integral):
            number = float(value)
            return number if math.isfinite(number) else {"$float": str(number)}
        if isinstance(value, Integral):  # numpy's
            return int(value)
        if isinstance(value, list):
            if _PLAIN.issuperset(map(type, value)):  # long lists mostly are
                return value
            return [self._take(part, f"{path}/{place}") for place, part in enumerate(value)]
        if isinstance(value, torch.Tensor):
            self.tensors[path] = value.detach()
            return {"$tensor": path, "device": value.device.type}
        if isinstance(value, Named):
            self.named[path] = value
            return {"$named": path, "device": value.device}
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str) or key.startswith("$") or "/" in key:
                    raise AceflError(f"{path} has the key {key!r}; allowed: strings without / that do not start with $")
            return {key: self._take(part, f"{path}/{key}") for key, part in value.items()}
        kind = type(value).__name__
        raise AceflError(f"{path} is a {kind}; allowed: tensors, numbers, strings, and lists and dicts of them")


def reassemble(skeleton: Any, names: Mapping[str, Iterable[str]], read: Callable[[str], torch.Tensor]) -> Any:
    """The state with this skeleton, and these names of named tensors; `read` gives the tensor that was at a place."""
    if isinstance(skeleton, list):
        return [reassemble(part, names, read) for part in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if "$float" in skeleton:
        return float(skeleton["$float"])
    if "$tensor" in skeleton:
        return read(skeleton["$tensor"]).to(skeleton["device"])
    if "$named" in skeleton:
        path = skeleton["$named"]
        return Named(names[path], lambda name: read(f"{path}/{name}").to(skeleton["device"]))
    return {key: reassemble(part, names, read) for key, part in skeleton.items()}


def blocks(count: int, least: int = 1024) -> list[tuple[int, int]]:
    """Cut a log of `count` entries, which only grows, into few ranges, most of which were there before it grew.

    From the largest power of two downwards, so there are about log2(count) of them, and an entry is written again as
    often as its range doubles.
    """
    ranges, start = [], 0
    while count - start >= least:
        size = 1 << ((count - start).bit_length() - 1)
        ranges.append((start, start + size))
        start += size
    return [*ranges, (start, count)] if start < count else ranges
