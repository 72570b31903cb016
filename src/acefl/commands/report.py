"""`acefl report`: the page of something recorded, made again from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acefl.commands import options


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write [dim]\\[DIR/report.html][/dim]",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Rebuild the report of a run, a comparison or a diagnosis.

    DIR is what compare or diagnose wrote, or run with --out. The page is made from its files
    alone, on any machine.

    Examples:
      acefl report acefl-compare
      acefl report runs/fedbuff --out fedbuff.html
    """
    from acefl import report as page
    from acefl.commands import show

    written = page.build(directory, out)
    table = page.summary_table(directory) if not (directory / "diagnose.json").exists() else None
    if json:
        summary = {} if table is None else {"summary": table.to_dict("records")}
        show.print_json({"directory": directory, "report": written, **summary})
        return
    if table is not None:
        show.print_summary(table)
    show.path("report", written)
