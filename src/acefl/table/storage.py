"""Where the table's rows live: in memory, on the model's device, or in a file."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from acefl.core.errors import InvalidInput, require
from acefl.core.kernels.layout import Layout, Row

CPU = torch.device("cpu")
MAGIC = b"acefl table, version 1\n"
PAGE = 4096  # rows begin on a page, so that no page holds parts of two


class RowStore(Protocol):
    """A client's row is opened, changed and saved, one at a time. Clients without a row cost nothing."""

    @property
    def present(self) -> set[int]:
        """The clients that have a row."""
        ...

    def open(self, client: int) -> Row:
        """The client's row where the kernels work; zeros for a client that has none yet."""
        ...

    def save(self, client: int, row: Row) -> None:
        """Keep what was written to an opened row."""
        ...

    def row_bytes(self, client: int) -> torch.Tensor:
        """The bytes of a row that is there, in host memory: to be read before the row changes."""
        ...

    def drop(self, client: int) -> None: ...

    def grow(self, clients: int) -> None: ...


def find(home: str | os.PathLike[str], layout: Layout, device: torch.device, clients: int) -> RowStore:
    """The home that a setting names: "memory", "device", or the path of a file."""
    named = isinstance(home, str | os.PathLike) and str(home) != ""
    require(named, f"home is {home!r}; allowed: 'memory', 'device' or a path")
    if home == "device" or (home == "memory" and device.type == "cpu"):
        return Memory(layout, device)
    host = Memory(layout, CPU) if home == "memory" else File(Path(home), layout, clients)
    return host if device.type == "cpu" else Staged(host, layout, device)


class Memory:
    """Rows are separate tensors, so that growing copies nothing and dropping gives memory back."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        self._rows: dict[int, Row] = {}
        self.present: set[int] = set()

    def open(self, client: int) -> Row:
        row = self._rows.get(client)
        return self._zeros() if row is None else row

    def save(self, client: int, row: Row) -> None:
        if client not in self.present:
            self._rows[client] = row
            self.present.add(client)

    def row_bytes(self, client: int) -> torch.Tensor:
        return self._rows[client].raw.cpu()

    def drop(self, client: int) -> None:
        self._rows.pop(client, None)
        self.present.discard(client)

    def grow(self, clients: int) -> None:
        pass

    def _zeros(self) -> Row:
        size = self._layout.row_bytes
        if self._device.type == "cpu":
            raw = torch.from_numpy(
                np.zeros(size, np.uint8)
            )  # pages that come when touched: torch would fill them first
        else:
            raw = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return Row.of(raw, self._layout)


class File:
    """Rows in a sparse file. One row at a time is in memory, so resident memory does not grow with the clients.

    Rows are read and written rather than mapped: it takes the same time, and a full or failing disk is an error that
    can be reported, not a bus error in the middle of a kernel. Room for a row is taken before anything else changes.
    The file is working memory, not a result: a table that is built on it starts empty.
    """

    def __init__(self, path: Path, layout: Layout, clients: int) -> None:
        self._path = path
        self._stride = -(-layout.row_bytes // PAGE) * PAGE
        self._row = Row.of(torch.from_numpy(np.zeros(layout.row_bytes, np.uint8)), layout)
        self._file = _open(path)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, MAGIC, 0)
        self.present: set[int] = set()
        self.grow(clients)

    def open(self, client: int) -> Row:
        if client in self.present:
            self._read(client, self._row.raw)
        else:
            self._row.raw.numpy().fill(0)  # torch would wake its threads, and they spin on for milliseconds
            self._write(client, self._row.raw)
        return self._row

    def save(self, client: int, row: Row) -> None:
        self._write(client, row.raw)
        self.present.add(client)

    def row_bytes(self, client: int) -> torch.Tensor:
        raw = torch.empty_like(self._row.raw)
        self._read(client, raw)
        return raw

    def drop(self, client: int) -> None:
        self.present.discard(client)

    def grow(self, clients: int) -> None:
        os.ftruncate(self._file, PAGE + clients * self._stride)

    def _read(self, client: int, raw: torch.Tensor) -> None:
        rest, offset = raw.numpy().data, PAGE + client * self._stride
        while rest:
            done = os.preadv(self._file, [rest], offset)
            if not done:
                raise OSError(errno.EIO, f"the row of client {client} is cut short", str(self._path))
            rest, offset = rest[done:], offset + done

    def _write(self, client: int, raw: torch.Tensor) -> None:
        rest, offset = raw.numpy().data, PAGE + client * self._stride
        try:
            while rest:
                done = os.pwrite(self._file, rest, offset)
                rest, offset = rest[done:], offset + done
        except OSError as error:
            message = f"the row of client {client} cannot be written: {error.strerror}"
            raise OSError(error.errno, message, str(self._path)) from None


class Staged:
    """Rows on the host for a model on another device: one row at a time visits the device."""

    def __init__(self, host: RowStore, layout: Layout, device: torch.device) -> None:
        self._host = host
        self._stage = Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8, device=device), layout)

    @property
    def present(self) -> set[int]:
        return self._host.present

    def open(self, client: int) -> Row:
        self._stage.raw.copy_(self._host.open(client).raw)
        return self._stage

    def save(self, client: int, row: Row) -> None:
        kept = self._host.open(client)
        kept.raw.copy_(row.raw)
        self._host.save(client, kept)

    def row_bytes(self, client: int) -> torch.Tensor:
        return self._host.row_bytes(client)

    def drop(self, client: int) -> None:
        self._host.drop(client)

    def grow(self, clients: int) -> None:
        self._host.grow(clients)


def _open(path: Path) -> int:
    """A file of ours or a new one, locked: two tables in one file would overwrite each other's rows."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(f"home is {path}, which cannot be opened as a file: {error.strerror}") from None
    problem = ""
    if os.fstat(file).st_size and os.pread(file, len(MAGIC), 0) != MAGIC:
        problem = "which holds something else than a table; name a new file"
    else:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            problem = "which another table is using; give each table its own file"
    if problem:
        os.close(file)
        raise InvalidInput(f"home is {path}, {problem}")
    return file
