"""How work tells how far it is: one kind of callback everywhere, and a bar where somebody watches.

On a terminal and in a notebook a bar appears once the work has lasted a moment; in a pipe there is none. Nothing here
is called per arrival, and nothing heavy is loaded before the bar is due.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[float, float, str], None]  # how much is done, of how much, and what was done last

_DELAY = 0.5  # seconds: shorter work needs no bar
_OFTEN = 0.1  # seconds between two looks of a notebook's bar


@contextlib.contextmanager
def shown(progress: Progress | bool | None, what: str) -> Iterator[Progress | None]:
    """What to call as work goes on: the caller's own function, a bar if True and somebody watches, or None."""
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        yield progress
    elif _notebook() is not None:
        yield _NotebookBar(what).tell
    elif sys.stderr is not None and sys.stderr.isatty():
        bar = _TerminalBar(what)
        try:
            yield bar.tell
        finally:
            bar.stop()
    else:
        yield None


def rich_bar(counted: bool, **settings: Any) -> RichProgress:
    """A bar on stderr: over so many jobs, or over shares of one run."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        BarColumn(bar_width=None),
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left "),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        **settings,
    )


class _TerminalBar:
    def __init__(self, what: str) -> None:
        self._what, self._began = what, time.monotonic()
        self._bar: RichProgress | None = None

    def tell(self, done: float, total: float, last: str) -> None:
        if self._bar is None:
            if time.monotonic() - self._began < _DELAY:
                return
            self._bar = rich_bar(counted=total > 1)
            self._line = self._bar.add_task(self._what, total=total)
            self._bar.start()
        self._bar.update(self._line, completed=done, total=total, description=last or self._what)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class _NotebookBar:
    """HTML that replaces itself: rich would need widgets here."""

    def __init__(self, what: str) -> None:
        self._what, self._began = what, time.monotonic()
        self._handle: Any = None
        self._looked = 0.0

    def tell(self, done: float, total: float, last: str) -> None:
        now = time.monotonic()
        over = done >= total
        if now - self._began < _DELAY or (now - self._looked < _OFTEN and not over):
            return
        self._looked = now
        notebook = importlib.import_module("IPython.display")
        words = f"{done:g} of {total:g}" if total > 1 else f"{done:.0%}"
        shown = notebook.HTML(
            f'<progress value="{done:g}" max="{total:g}"></progress> {words}, {now - self._began:.0f} s '
            f"{escape(last or self._what)}"
        )
        if self._handle is None:
            self._handle = notebook.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _notebook() -> Any:
    """The kernel of a notebook, if this is one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)
