"""Files and directories that appear complete or not at all, and JSON in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.core.settings import plain

CHECKPOINT = "checkpoint"  # the folder of a run in progress, see `acefl.runs.directory`
UNFINISHED = "unfinished"  # that of a comparison in progress, see `acefl.studies.unfinished`


@contextlib.contextmanager
def atomic_directory(target: Path, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A directory that appears at `target` complete or not at all; a record that is already there is replaced.

    check: refuses a place that must not be replaced; None: all but records.
    """
    (check or check_replaceable)(target)
    target = target.resolve()
    new_parents = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror}: {error.filename}") from None
    try:
        yield beside
        beside.chmod(0o755)
        if target.exists():
            _replace(target, beside)
        else:
            beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        for parent in new_parents:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _replace(target: Path, beside: Path) -> None:
    """Put the new directory in the old one's place, which stays whole until it is there."""
    old = beside.with_name(f"{beside.name}-old")
    target.rename(old)
    try:
        beside.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def check_replaceable(target: Path, *, goes_on: bool = False) -> None:
    """Refuse a place that a record must not replace: anything that is not a record, and where this process stands.

    goes_on: whether what was interrupted there is about to go on.
    """
    checkpoints = target / CHECKPOINT
    if (checkpoints / "lock").exists():
        raise InvalidInput(f"{target} holds an interrupted run; resume it, or remove {checkpoints}")
    if not is_new(checkpoints):
        raise InvalidInput(f"{checkpoints} exists and is not acefl's; allowed: a directory without it")
    if (target / UNFINISHED).exists() and not goes_on:
        raise InvalidInput(f"{target} holds an interrupted comparison; go on with it, or remove {target / UNFINISHED}")
    if target.exists() and not (target.is_dir() and _is_ours(target)):
        raise InvalidInput(f"{target} exists and is not an acefl record; allowed: a new or empty directory")
    if Path.cwd().is_relative_to(target.resolve()):
        raise InvalidInput(f"{target} is or holds the current directory; allowed: a directory beside or below it")


def check_finished(directory: Path) -> None:
    """Refuse to read what was interrupted as if it were complete, and say how it goes on."""
    for begun, how in ((UNFINISHED, "call compare again"), (CHECKPOINT, "acefl.resume goes on with it")):
        if (directory / begun).is_dir():
            raise InvalidInput(f"{directory} holds something interrupted, and nothing finished; {how}")


def _is_ours(directory: Path) -> bool:
    """Empty, or with a file that only acefl writes: a config.json may be any program's and is not ours to delete."""
    if all(entry.name in (CHECKPOINT, UNFINISHED) for entry in directory.iterdir()):
        return True
    for name in ("compare.json", "config.json", "diagnose.json"):
        with contextlib.suppress(InvalidInput):
            content = read_json(directory / name)
            return isinstance(content.get("machine"), dict) and "acefl" in content["machine"]
    return False


def is_new(folder: Path) -> bool:
    """Whether nothing is there yet: no such directory, or an empty one."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def claim(note: Path, settings: Mapping[str, Any], what: str, **more: Any) -> None:
    """Write down what the results in a directory are made with; one that holds others, or something else, is refused.

    So a second call with the same settings may add to them. more: what is written down beside the settings.
    """
    folder, claimed = note.parent, plain(settings)
    if note.exists():
        there = read_json(note)
        for key, value in claimed.items():
            same = there.get(key) == value
            require(same, f"{folder} holds a {what} with other {key}; allowed: a new directory, or the same settings")
        return
    require(is_new(folder), f"{folder} is not empty and holds no {what}; allowed: a new directory")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, {**claimed, **more})


def atomic_write(path: Path, text: str) -> None:
    """Write a file that is there complete or not at all; what was there before stays until then."""
    beside = path.with_name(f".{path.name}.unfinished")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    atomic_write(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one clear line."""
    return json_object(read_text(path), path)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path}: missing") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{path}: cannot be read ({problem})") from None


def json_object(text: str, where: object) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"{where}: not valid JSON ({problem})") from None
    require(isinstance(content, dict), f"{where}: not a JSON object")
    found: dict[str, Any] = content
    return found


class JsonLines:
    """A file that grows by one JSON value a line. A line that a crash cut off is dropped when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Iterator[tuple[int, Any]]:
        """Every value with the number of its line."""
        if self.path.exists():
            for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
                with contextlib.suppress(ValueError):
                    yield number, json.loads(line)

    def add(self, value: Any) -> Any:
        """Append a value, and return it as it will be read."""
        text = json.dumps(plain(value), allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # after a line that was cut off
            file.write(text.encode() + b"\n")
        return json.loads(text)


def sync_directory(folder: Path) -> None:
    """Make what was created, renamed and removed in a directory survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
