"""The directory of a study in progress: what was begun outlives a kill, and appears in its place once it is complete.

The work lies in `DIR/unfinished`. What `DIR` held before, such as an earlier comparison, stays whole until then.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from acefl.core.errors import InvalidInput
from acefl.core.files import UNFINISHED, check_replaceable
from acefl.runs.directory import locked

_LOCK = "lock"


@contextlib.contextmanager
def resumable_directory(target: Path, *, worth_keeping: Callable[[Path], bool]) -> Iterator[Path]:
    """A folder to work in, with what an interrupted call left there; in the end it takes the place of `target`.

    If the work fails or is interrupted it stays, unless it holds nothing yet that is worth keeping.
    """
    target = target.resolve()
    old = target.with_name(f".{target.name}-replaced")
    if old.exists() and not target.exists():
        old.rename(target)  # killed between the two steps of `_take_place`
    check_replaceable(target, goes_on=True)
    work = target / UNFINISHED
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror}: {error.filename}") from None
    with locked(work):
        try:
            yield work
            (work / _LOCK).unlink()
            _take_place(target, old)
        except BaseException:
            if not worth_keeping(work):
                shutil.rmtree(work, ignore_errors=True)
                for folder in made:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            raise


def _take_place(target: Path, old: Path) -> None:
    """Two renames: killed between them, the next call puts the old directory back and goes on at the end."""
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    (old / UNFINISHED).rename(target)
    shutil.rmtree(old)
