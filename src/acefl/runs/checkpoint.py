"""Checkpoints: states in a directory, of which the last good one survives whatever happens to the process or the disk.

A checkpoint is one safetensors file, `00000007-<checksum>.safetensors`. Its metadata holds the state's skeleton as
JSON, and for every named tensor the file that holds it: this one, or an earlier one if it was saved before. So a
checkpoint writes only what is new, such as the rows of the table that changed.

- Atomic: a file is written beside, flushed to the disk and then renamed, and only then are older ones removed.
- Checksummed: the name holds the checksum of the content, so a file that was cut off, or in which a bit flipped, is
  found out before it is used. The checkpoint before the newest is always kept, and so is the very first, from which
  everything can be computed again.
- Bounded: what is still needed of a file that is mostly outdated is written again, and the file is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from acefl.core.errors import InvalidInput, require
from acefl.core.files import sync_directory
from acefl.core.state import Parts, reassemble
from acefl.core.types import State

FORMAT = "2"
MOST_FILES = 32  # earlier files that one checkpoint refers to
LARGEST_HEADER = 100_000_000  # bytes: what the safetensors library is willing to read
_FILE = re.compile(r"(\d{8,})-[0-9a-f]{32}\.safetensors")
_BESIDE = "writing.tmp"
_HERE = -1  # the place of a tensor that lies in the checkpoint's own file
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Every:
    """When to save: once so many arrivals were accepted since the last time.

    Args:
        arrivals: How many, at least 1.
    """

    arrivals: int

    def __post_init__(self) -> None:
        whole = isinstance(self.arrivals, int) and not isinstance(self.arrivals, bool)
        require(whole and self.arrivals >= 1, f"arrivals is {self.arrivals!r}; allowed: a whole number of at least 1")


class Damaged(Exception):
    """Why a checkpoint cannot be used."""


Source = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a file says of a tensor before its numbers."""

    dtype: torch.dtype
    shape: list[int]
    bytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Kind:
        return cls(tensor.dtype, list(tensor.shape), tensor.nbytes)


class Checkpoints:
    """The checkpoints in one directory. The caller sees to it that nobody else writes there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, dict[str, int]] = {}  # file -> named tensors that are still needed from it -> their bytes
        self._sizes: dict[str, int] = {}  # file -> bytes of all tensors in it
        self._last: set[str] = set()  # the files of the last good checkpoint
        self._next = max(map(_number, self.files), default=-1) + 1

    @property
    def files(self) -> list[str]:
        """Newest first."""
        found = [entry.name for entry in os.scandir(self._folder) if _FILE.fullmatch(entry.name)]
        return sorted(found, key=_number, reverse=True)

    def save(self, state: State) -> None:
        """Write a checkpoint, and remove what the last two do not need.

        After an OSError (the disk is full, say) the checkpoints are what they were before.
        """
        parts = Parts.of(state)
        held = self._still_needed(parts)
        place = {path: index for index, paths in enumerate(held.values()) for path in paths}
        new: dict[str, Source] = {
            f"{group}/{name}": partial(tensors.__getitem__, name)
            for group, tensors in parts.named.items()
            for name in tensors
            if f"{group}/{name}" not in place
        }
        content = {
            "state": parts.skeleton,
            "earlier": list(held),
            "named": {
                group: {name: place.get(f"{group}/{name}", _HERE) for name in tensors}
                for group, tensors in parts.named.items()
            },
        }
        changing = {path: partial(_same, tensor) for path, tensor in parts.tensors.items()}
        file, sizes = self._write({**changing, **new}, content)
        self._held = {**held, file: {path: sizes[path] for path in new}}
        self._sizes[file] = sum(sizes.values())
        needed = {file, *held}
        self._remove_all_but(needed | self._last | {self.files[-1]})
        self._last = needed

    def load(self) -> State:
        """The newest state that is undamaged; InvalidInput if there is none."""
        verified: set[str] = set()
        for file in self.files:
            try:
                return self._read(file, verified)
            except Damaged as damage:
                log.warning("%s: %s; trying an earlier checkpoint", self._folder / file, damage)
        raise InvalidInput(f"{self._folder} has no undamaged checkpoint")

    def _still_needed(self, parts: Parts) -> dict[str, dict[str, int]]:
        """What the new checkpoint takes from earlier files; the rest of what is named it writes itself.

        Once more than half of what lies there is outdated, the most outdated files are given up until it is a third.
        What is written again for that is no more than what was outdated.
        """
        current = {f"{group}/{name}" for group, tensors in parts.named.items() for name in tensors}
        held = {
            file: {path: size for path, size in self._held.get(file, {}).items() if path in current}
            for file in self.files
        }
        needed = {file: sum(paths.values()) for file, paths in held.items() if paths}
        outdated = {file: self._sizes[file] - needed[file] for file in needed}
        kept = sorted(needed, key=lambda file: needed[file] / self._sizes[file])
        if sum(outdated.values()) > sum(needed.values()):
            while sum(outdated[file] for file in kept) > sum(needed[file] for file in kept) / 2:
                kept.pop(0)
        if len(kept) > MOST_FILES:
            kept = sorted(kept, key=needed.__getitem__)[-MOST_FILES // 2 :]
        return {file: held[file] for file in kept}

    def _write(self, sources: Mapping[str, Source], content: dict[str, Any]) -> tuple[str, dict[str, int]]:
        """Write a safetensors file, and tell its name and how many bytes each tensor takes.

        Tensor by tensor, where the library's own writer would have all of them in memory at once.
        """
        number, self._next = self._next, self._next + 1
        beside = self._folder / _BESIDE
        kinds = {path: _Kind.of(read()) for path, read in sources.items()}
        ordered = sorted(kinds, key=lambda path: -kinds[path].dtype.itemsize)  # so that every tensor lies aligned
        header = _header({path: kinds[path] for path in ordered}, content)
        checksum = hashlib.sha256(header)
        try:
            with open(beside, "wb") as out:
                out.write(header)
                for path in ordered:
                    data = sources[path]().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                    checksum.update(data)
                    out.write(data)
                out.flush()
                os.fsync(out.fileno())
            file = f"{number:08d}-{checksum.hexdigest()[:32]}.safetensors"
            beside.rename(self._folder / file)
            sync_directory(self._folder)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        return file, {path: kind.bytes for path, kind in kinds.items()}

    def _read(self, file: str, verified: set[str]) -> State:
        from safetensors import SafetensorError, safe_open

        opened: dict[str, Any] = {}

        def open_verified(name: str) -> Any:
            self._verify(name, verified)
            opened[name] = safe_open(self._folder / name, "pt")
            return opened[name]

        try:
            metadata = open_verified(file).metadata()
            found = metadata["format"]
            if found == FORMAT:
                content = json.loads(metadata["checkpoint"])
                for other in content["earlier"]:
                    open_verified(other)
                sources = [*content["earlier"], file]
                where = {
                    f"{group}/{name}": sources[place]
                    for group, names in content["named"].items()
                    for name, place in names.items()
                }
                state: State = reassemble(
                    content["state"],
                    content["named"],
                    lambda path: opened[where.get(path, file)].get_tensor(path).clone(),
                )
        except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
            raise Damaged(f"it is not a checkpoint ({error})") from None
        require(found == FORMAT, f"{self._folder / file} has format {found}; this acefl reads {FORMAT}")
        self._last = set(opened)
        return state

    def _verify(self, file: str, verified: set[str]) -> None:
        if file in verified:
            return
        if not _FILE.fullmatch(file):
            raise Damaged(f"it needs {file!r}, which is no checkpoint")
        try:
            with open(self._folder / file, "rb") as content:
                checksum = hashlib.file_digest(content, "sha256").hexdigest()[:32]
        except OSError as error:
            raise Damaged(f"{file} cannot be read ({error.strerror})") from None
        if checksum not in file:
            raise Damaged(f"{file} is damaged: its content does not match its checksum")
        verified.add(file)

    def _remove_all_but(self, needed: set[str]) -> None:
        for file in self.files:
            if file not in needed:
                with suppress(OSError):
                    (self._folder / file).unlink()
                self._sizes.pop(file, None)


def _number(file: str) -> int:
    return int(file.partition("-")[0])


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _header(kinds: Mapping[str, _Kind], content: dict[str, Any]) -> bytes:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT, "checkpoint": text}}
    end = 0
    for path, kind in kinds.items():
        start, end = end, end + kind.bytes
        entries[path] = {"dtype": _DTYPES[kind.dtype], "shape": kind.shape, "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    require(len(header) <= LARGEST_HEADER, f"the state takes {len(header)} bytes as JSON; allowed: {LARGEST_HEADER}")
    return struct.pack("<Q", len(header)) + header
