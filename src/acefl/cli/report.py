"""`acefl report`: the page of something recorded, made again from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acefl.cli import options


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    out: Annotated[Path | None, options.option(options.OUTPUT, "FILE", "The page to write", "DIR/report.html")] = None,
    json: options.Json = False,
) -> None:
    """Rebuild the report of anything recorded: a run, a comparison, a sweep.

    DIR is what compare, diagnose, sweep or leaderboard wrote, or run or tune with
    --out. The page is made from its files alone, on any machine.

    Examples:
      acefl report acefl-compare
      acefl report runs/fedbuff --out fedbuff.html
    """
    from acefl import report as page
    from acefl.cli import show

    written = page.build(directory, out)
    table = page.summary_table(directory) if page.compares(directory) else None
    if json:
        summary = {} if table is None else {"summary": table.to_dict("records")}
        show.print_json({"directory": directory, "report": written, **summary})
        return
    if table is not None:
        show.print_summary(table)
    show.path("report", written)
