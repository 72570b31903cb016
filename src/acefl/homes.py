"""Where the table's rows live: in memory, on the model's device, or in a file that is mapped a row at a time."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from acefl.errors import InvalidInput, require
from acefl.kernels.layout import Layout, Row

CPU = torch.device("cpu")
MAGIC = b"acefl table, version 1\n"


class Home(Protocol):
    """A client's row is opened, changed and saved. Clients without a row cost nothing."""

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

    def drop(self, client: int) -> None: ...

    def grow(self, clients: int) -> None: ...


def find(home: str | os.PathLike[str], layout: Layout, device: torch.device, clients: int) -> Home:
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

    def drop(self, client: int) -> None:
        self._rows.pop(client, None)
        self.present.discard(client)

    def grow(self, clients: int) -> None:
        pass

    def _zeros(self) -> Row:
        size = self._layout.row_bytes
        if self._device.type == "cpu":
            raw = torch.from_numpy(np.zeros(size, np.uint8))  # numpy asks for huge pages, torch does not
        else:
            raw = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return Row.of(raw, self._layout)


class File:
    """Rows in a sparse file. Only the row in use is mapped, so resident memory does not grow with the clients.

    A row's blocks are allocated when its client first arrives: then a full disk is an error here, and not a bus error
    in the middle of a kernel. The file holds working memory, not results: a table that is built on it starts empty.
    """

    def __init__(self, path: Path, layout: Layout, clients: int) -> None:
        self._path, self._layout = path, layout
        page = mmap.ALLOCATIONGRANULARITY
        self._stride = -(-layout.row_bytes // page) * page
        self._file = _open(path)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, MAGIC, 0)
        self.present: set[int] = set()
        self.grow(clients)

    def open(self, client: int) -> Row:
        offset = mmap.ALLOCATIONGRANULARITY + client * self._stride
        if client not in self.present:
            try:
                os.posix_fallocate(self._file, offset, self._stride)
            except OSError as error:
                raise OSError(error.errno, f"no room for client {client}: {error.strerror}", str(self._path)) from None
        mapped = mmap.mmap(self._file, self._stride, offset=offset)
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=self._layout.row_bytes)
        if client not in self.present:
            raw.zero_()
        return Row.of(raw, self._layout)

    def save(self, client: int, row: Row) -> None:
        self.present.add(client)

    def drop(self, client: int) -> None:
        self.present.discard(client)

    def grow(self, clients: int) -> None:
        os.ftruncate(self._file, mmap.ALLOCATIONGRANULARITY + clients * self._stride)


class Staged:
    """Rows on the host for a model on another device: one row at a time visits the device."""

    def __init__(self, host: Home, layout: Layout, device: torch.device) -> None:
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
