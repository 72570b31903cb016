"""What travels between a ServerApp and its ClientApps, and how each side reads it.

A model goes out as the user's own named arrays, as with Flower's strategies, so that a ClientApp reads it as it always
did; with a lossy `downlink` it goes out as one packed vector and the client's side of acefl unpacks it first. An update
comes back as one packed vector. Both carry an `acefl` record that says which task of which run they belong to.

Flower makes requests for every array, record and chunk of a message, on either side, and they are most of what a small
message costs. So between a server and a client that both know of it, a small vector travels within the `acefl` record.
"""

from __future__ import annotations

import enum
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from acefl.core.errors import AceflError, InvalidInput, require
from acefl.core.types import Vector
from acefl.fleets import wire

ORDER, MODEL, UPDATE = "acefl", "arrays", "update"
NO_BASE = -1
MOST_SAMPLES = 2**53  # beyond which a float is no count
INLINE = 1 << 20  # bytes of the largest vector that travels within a record: those of arrays come in chunks
_PACKED = "acefl"  # the serialisation type of our packed vectors; Flower only reads its own
_PLAIN = "numpy.ndarray"
_HOLD_FLOAT32 = {"float32", "float64"}  # types that change no bit of a float32, as float16 does


class Form(enum.Enum):
    """How a model travels."""

    PLAIN = enum.auto()  # the user's arrays
    PACKED = enum.auto()  # one vector as an array
    INLINE = enum.auto()  # one vector within the order


class Refused(AceflError):
    """An answer that is none; the message is a reason code."""

    def __init__(self, reason: str, nbytes: int = 0) -> None:
        super().__init__(reason)
        self.nbytes = nbytes


@dataclass(frozen=True)
class Order:
    """What the server asks for, beside the model."""

    run: str
    task: int
    version: int
    uplink: str = "fp32"
    downlink: str = "fp32"
    differences: bool = False  # client-held ACE: send the change since the task `base`
    base: int = NO_BASE
    trained: bool = False  # only trained arrays are asked for: the learning rate was chosen for these
    inline: bool = True  # the server reads small updates within the record of the answer

    def record(self, layout: str = "", model: bytes | None = None) -> ConfigRecord:
        return ConfigRecord({**asdict(self), "layout": layout, **({} if model is None else {MODEL: model})})

    @classmethod
    def read(cls, content: RecordDict) -> Order:
        record = content.get(ORDER)
        if not isinstance(record, ConfigRecord):
            raise InvalidInput(f"the message has no {ORDER!r} record: it was not sent by acefl.flower.run_async")
        known: dict[str, Any] = {"inline": False}  # a server of an earlier version does not say everything
        known |= {field.name: record[field.name] for field in fields(cls) if field.name in record}
        return cls(**known)


@dataclass(frozen=True)
class Answer:
    """What a client sends back."""

    update: Vector
    base: int
    samples: int
    metrics: dict[str, float]
    nbytes: int
    trained: bool = False  # made by the mod `send_update`


@dataclass(frozen=True)
class Findings:
    """What a client found when it evaluated a model on its own data."""

    samples: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class ModelLayout:
    """Where each of the user's arrays lies in the flat model. Arrays of whole numbers are carried along unchanged."""

    def __init__(self, entries: list[_Entry], carried: dict[str, Array]) -> None:
        self._entries, self._carried = entries, carried
        self.dim = sum(entry.size for entry in entries if entry.trained)
        require(self.dim > 0, "the model has no arrays of floating-point numbers; allowed: at least one")
        self._exact = {entry.dtype for entry in entries if entry.trained} <= _HOLD_FLOAT32

    @classmethod
    def of(cls, arrays: ArrayRecord) -> ModelLayout:
        entries = [_Entry(name, tuple(a.shape), a.dtype, _is_float(a.dtype)) for name, a in arrays.items()]
        return cls(entries, {e.name: arrays[e.name] for e in entries if not e.trained})

    def flat(self, arrays: ArrayRecord) -> Vector:
        """The model's numbers in one float32 vector; InvalidInput if the arrays are not this model's."""
        parts = []
        for entry in self._trained():
            array = arrays.get(entry.name)
            require(array is not None, f"array {entry.name!r} is missing; allowed: all arrays of the model")
            assert array is not None
            values = array.numpy()
            require(
                values.shape == entry.shape,
                f"array {entry.name!r} has shape {values.shape}; the model's has {entry.shape}",
            )
            parts.append(values.astype(np.float32, copy=False).reshape(-1))
        return torch.from_numpy(np.concatenate(parts))

    def arrays(self, vector: Vector) -> ArrayRecord:
        """The user's arrays, in their order, with the numbers of a flat vector."""
        numbers = vector.detach().to("cpu", torch.float32).contiguous().numpy()
        record, start = ArrayRecord(), 0
        for entry in self._entries:
            if entry.trained:
                part = numbers[start : start + entry.size]
                start += entry.size
                record[entry.name] = _array(part.astype(entry.dtype, copy=False).reshape(entry.shape))
            else:
                record[entry.name] = self._carried[entry.name]
        return record

    def flat_gradient(self, gradient: dict[str, torch.Tensor]) -> Vector:
        """Named gradients in one vector: zeros for arrays that have none (statistics, frozen layers)."""
        known = {entry.name for entry in self._trained()}
        for name in gradient:
            require(name in known, f"gradient of {name!r}; allowed: arrays of the model, {', '.join(sorted(known))}")
        parts = []
        for entry in self._trained():
            part = gradient.get(entry.name)
            shape = tuple(part.shape) if part is not None else entry.shape
            require(shape == entry.shape, f"gradient of {entry.name!r} has shape {shape}; its array has {entry.shape}")
            parts.append(torch.zeros(entry.size) if part is None else part.detach().reshape(-1).cpu().float())
        return torch.cat(parts)

    def form(self, encoding: str, *, unpacks: bool) -> Form:
        """How a model travels with the fewest requests, to a client that is known to unpack it or not.

        Lossy encodings are always packed. Otherwise the client's arrays must hold every number of the vector.
        """
        if not (unpacks and self._exact):
            return Form.PLAIN if encoding == "fp32" else Form.PACKED
        if not self._carried and wire.nbytes(encoding, self.dim) <= INLINE:
            return Form.INLINE
        return Form.PACKED

    def made(self, form: Form, vector: Vector, encoding: str, draw: int) -> ArrayRecord | bytes:
        """The model in one of its forms."""
        if form is Form.INLINE:
            return wire.encode(vector, encoding, draw)
        return self.arrays(vector) if form is Form.PLAIN else self.pack(vector, encoding, draw)

    def pack(self, vector: Vector, encoding: str, draw: int) -> ArrayRecord:
        """One packed vector, and the arrays that are only carried along."""
        record = ArrayRecord({name: array for name, array in self._carried.items()})
        record[ORDER] = packed(vector, encoding, draw)
        return record

    def describe(self) -> str:
        """Names, shapes and types, for the side that unpacks."""
        return json.dumps([[e.name, list(e.shape), e.dtype, e.trained] for e in self._entries])

    @classmethod
    def unpack(cls, record: ArrayRecord | bytes, encoding: str, description: str) -> tuple[ModelLayout, Vector]:
        entries = [
            _Entry(name, tuple(shape), dtype, trained) for name, shape, dtype, trained in json.loads(description)
        ]
        if isinstance(record, bytes):
            layout = cls(entries, {})
            return layout, wire.decode(record, encoding, layout.dim)
        layout = cls(entries, {e.name: record[e.name] for e in entries if not e.trained})
        return layout, unpacked(record[ORDER], encoding, layout.dim)

    def _trained(self) -> Iterator[_Entry]:
        return (entry for entry in self._entries if entry.trained)


def packed(vector: Vector, encoding: str, draw: int) -> Array:
    return Array(encoding, (vector.numel(),), _PACKED, wire.encode(vector, encoding, draw))


def unpacked(array: Array, encoding: str, dim: int) -> Vector:
    require(array.stype == _PACKED, f"an array of type {array.stype!r}; allowed: {_PACKED!r}")
    return wire.decode(array.data, encoding, dim)


def nbytes(content: RecordDict) -> int:
    """What the arrays of a message weigh, and vectors within its records."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    values = (value for record in content.config_records.values() for value in record.values())
    return arrays + sum(len(value) for value in values if isinstance(value, bytes))


def read_answer(content: RecordDict, order: Order, dim: int, most: int) -> Answer:
    """A client's answer to an order, or Refused with the reason. Nothing in it is trusted."""
    size = nbytes(content)
    if size > most:
        raise Refused("oversized", size)
    record, update = content.get(ORDER), content.get(UPDATE)
    if not isinstance(record, ConfigRecord):
        raise Refused("no-update", size)
    inline = record.get(UPDATE)
    if not isinstance(inline, bytes) and not (isinstance(update, ArrayRecord) and UPDATE in update):
        raise Refused("no-update", size)
    if record.get("run") != order.run:
        raise Refused("foreign-run", size)
    if record.get("task") != order.task or record.get("version") != order.version:
        raise Refused("foreign-task", size)
    base = record.get("base")
    if type(base) is not int or (base != order.base and base != NO_BASE):
        raise Refused("foreign-base", size)
    if order.trained and record.get("trained") is not True:
        raise Refused("gradient-without-lr", size)
    try:
        if isinstance(inline, bytes):
            vector = wire.decode(inline, order.uplink, dim)
        else:
            assert isinstance(update, ArrayRecord)
            vector = unpacked(update[UPDATE], order.uplink, dim)
    except InvalidInput:
        raise Refused("wrong-shape", size) from None
    found = read_findings(content)
    return Answer(vector, base, found.samples, found.metrics, size, record.get("trained") is True)


def read_findings(content: RecordDict) -> Findings:
    """The finite numbers among a message's metrics; `num-examples` is Flower's name for a client's samples."""
    metrics = {}
    for record in content.metric_records.values():
        for name, value in record.items():
            if isinstance(value, int | float) and math.isfinite(value):
                metrics[name] = float(value)
    samples = metrics.pop("num-examples", 0.0)
    return Findings(int(samples) if 0 <= samples < MOST_SAMPLES else 0, metrics)


def _is_float(dtype: str) -> bool:
    try:
        return np.issubdtype(np.dtype(dtype), np.floating)
    except TypeError:
        raise InvalidInput(f"arrays of type {dtype!r} cannot be trained; allowed: numpy's types") from None


def _array(values: np.ndarray[Any, Any]) -> Array:
    """Flower's own form of an array, with one copy of the numbers where its constructor makes three."""
    head = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(head, description)
    data = b"".join((head.getvalue(), np.ascontiguousarray(values).reshape(-1).view(np.uint8).data))
    return Array(str(values.dtype), tuple(values.shape), _PLAIN, data)
