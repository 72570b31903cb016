"""The fall-back for a GPU without Triton: vectors visit the host. Right, and slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from acefl.core.kernels import reference
from acefl.core.kernels.layout import Key, Layout, Row, Sum
from acefl.core.types import Vector


class ThroughHost(reference.Reference):
    """Plain numpy on copies of what lies on the device."""

    name = "numpy, through the host"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._host = reference.Reference(layout)

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        with _visit(into) as sums:
            host = Row.of(row.raw.cpu(), self.layout)
            self._host.exchange(host, new.cpu(), sums, scale, key)
            row.raw.copy_(host.raw)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        with _visit(into) as sums:
            host, stepped = Row.of(row.raw.cpu(), self.layout), model.cpu()
            self._host.exchange_and_step(host, new.cpu(), sums, scale, key, stepped, rate)
            row.raw.copy_(host.raw)
            model.copy_(stepped)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        with _visit(into) as sums:
            self._host.add(Row.of(row.raw.cpu(), self.layout), sums, scale)

    def decode(self, row: Row) -> Vector:
        return self._host.decode(Row.of(row.raw.cpu(), self.layout)).to(row.raw.device)


def read_through_host(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    with _visit(of) as sums:
        reference.read(sums, host := torch.empty_like(value, device="cpu"))
    value.copy_(host)


@contextmanager
def _visit(into: Sum) -> Iterator[Sum]:
    copies = [None if part is None else part.cpu() for part in into]
    yield Sum(*(None if copy is None else copy.numpy() for copy in copies))
    for part, copy in zip(into, copies, strict=True):
        if part is not None:
            part.copy_(copy)
