"""How commands speak: results on stdout, everything else on stderr, and bars only where somebody watches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from acefl.core.errors import Interrupted
from acefl.core.progress import Progress as ProgressCallback
from acefl.core.progress import rich_bar

if TYPE_CHECKING:
    import pandas as pd
    from rich.progress import Progress as RichProgress

    from acefl.cli.prepare import Prepared

_WIDTH_OF_FILES = 120  # rich would squeeze what goes into a file or a pipe into 80 columns


def console() -> Console:
    """Where results go."""
    free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_WIDTH_OF_FILES if free else None)


def print_json(content: dict[str, Any]) -> None:
    """The result for machines; NaN and infinity, which JSON does not have, as null."""
    from acefl.core.settings import plain

    print(json.dumps(plain(content), indent=2, allow_nan=False, ensure_ascii=False))


def print_expectations(ready: Prepared) -> None:
    """What to expect and what cannot matter, before the work begins."""
    for line in ready.expectation:
        note(line)
    for line in ready.warnings:
        warn(line)


def warn(line: str) -> None:
    """Something to know that is no error."""
    note(Text.assemble(("warning: ", "yellow"), line))


def note(line: str | Text) -> None:
    """Said beside the result; wrapped for people, one line for logs."""
    stderr = Console(stderr=True, highlight=False)
    stderr.print(line, markup=False, soft_wrap=not stderr.is_terminal)


@contextmanager
def job_bar(quiet: bool, ready: Prepared | None = None, then: str = "") -> Iterator[ProgressCallback]:
    """What to expect, once all is checked and work begins; then a bar over jobs, with what was done last.

    The number of jobs grows while learning rates are searched. `then` is what is left to do after all of them.
    """
    bar = _bar(quiet, counted=True)
    line = bar.add_task("starting workers", total=None)

    def progress(done: float, known: float, last: str) -> None:
        if ready is not None and not last and not quiet:
            print_expectations(ready)
        bar.start()
        what = (then if done == known else "") or last or "starting workers"
        bar.update(line, completed=done, total=known, description=what)

    try:
        yield progress
    finally:
        bar.stop()


@contextmanager
def telling_how_to_resume(out: Path | None, begun: Path | None = None) -> Iterator[None]:
    """Say after Ctrl-C or SIGTERM that the same command goes on, where something was written down (in `begun`)."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ending:
        if out is None or not (begun or out).exists():
            raise
        goes_on = f"interrupted; the same command goes on where it was, in {out}"
        if isinstance(ending, KeyboardInterrupt):
            raise Interrupted(goes_on) from None
        print(goes_on, file=sys.stderr)
        raise


@contextmanager
def fraction_bar(what: str, quiet: bool) -> Iterator[ProgressCallback]:
    """A bar over one run's budget."""
    with _bar(quiet, counted=False) as bar:
        line = bar.add_task(what, total=1.0)
        yield lambda spent, whole, last: bar.update(line, completed=spent, total=whole)


def _bar(quiet: bool, *, counted: bool) -> RichProgress:
    return rich_bar(counted, disable=quiet or not sys.stderr.isatty())


def summary(table: pd.DataFrame) -> Table:
    """The results of a comparison: a method per row, in bold what the report has in bold.

    Where the terminal is narrow it is set tighter, then without what only the report needs to show.
    """
    from acefl.report import tables

    text, bold = tables.readable(table), tables.bold(table)
    room = console().width
    spare = ["gradient norm", "slow-fifth training accuracy", "server steps"]
    kept = {"method", text.columns[1], text.columns[-1], *spare}
    spare += [str(heading) for heading in reversed(text.columns) if heading not in kept]
    for left_out in (spare[:count] for count in range(len(spare) + 1)):
        for gap in (2, 1):
            shown = _set_in_columns(text.drop(columns=left_out, errors="ignore"), bold, gap)
            if Console(width=1000).measure(shown).minimum <= room:
                return shown
    return shown


def print_summary(table: pd.DataFrame) -> None:
    """A comparison's table, and under it why something is bold."""
    from acefl.report import tables

    console().print(summary(table))
    if why := tables.why_bold(table):
        console().print(why, markup=False)


def _set_in_columns(text: pd.DataFrame, bold: pd.DataFrame, gap: int) -> Table:
    """Headings may break at spaces and a method's name anywhere; a number never does."""
    shown = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for heading in text.columns:
        if heading == "method":
            shown.add_column(heading, vertical="bottom", overflow="fold", min_width=13)
        else:
            widest = max(map(len, [*str(heading).split(), *text[heading]]))
            broken = str(heading).replace(" ", "\n")
            shown.add_column(broken, justify="right", vertical="bottom", no_wrap=True, min_width=widest)
    for row in range(len(text)):
        cells = [Text(str(cell), "bold" if bold[name].iloc[row] else "") for name, cell in text.iloc[row].items()]
        shown.add_row(*cells)
    return shown


def pairs(lines: dict[str, str], justify: JustifyMethod = "left") -> Table:
    """A name and what it is, per line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify=justify)
    for name, value in lines.items():
        table.add_row(Text(name), Text(value))
    return table


def path(label: str, where: Path) -> None:
    """A path on a line of its own, never broken, and a link where the terminal knows links."""
    line = Text(f"{label}: ")
    line.append(str(where), style=f"link {where.resolve().as_uri()}")
    console().print(line, soft_wrap=True)
