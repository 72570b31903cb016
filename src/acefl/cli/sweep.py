"""`acefl sweep`: a grid of runs that can be killed and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acefl.cli import options


def sweep(
    grid: Annotated[Path | None, typer.Argument(metavar="GRID.toml")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V", help="A setting and its values, in place of the file's; repeat it"),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; an unfinished sweep there goes on")] = Path(
        "acefl-sweep"
    ),
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Ray cluster, or 'local', instead of worker processes")
    ] = None,
    by: options.By = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Run every combination of the settings in a grid.

    Lists in GRID.toml multiply. Results land as they finish. Killed, it goes on
    where it was when called again; a combination that fails is written down and
    does not stop the others. Keys are method, lr, optimizer, schedule, seed,
    evaluations, and those of the tables task, scenario and stop; docs/sweep.md
    has a grid to copy.

    Examples:
      acefl sweep grid.toml
      acefl sweep --vary method=ACE,ASGD --vary lr=0.05,0.2 --out rates
      acefl sweep --vary lr=0.1 --vary task.alpha=0.1,1
      acefl sweep grid.toml --vary seed=0,1,2,3,4 --ray auto
    """
    from acefl import report
    from acefl.cli import show
    from acefl.core.errors import require
    from acefl.studies import sweep as sweeping
    from acefl.studies.pools import get_ready

    require(grid is not None or bool(vary), "nothing to sweep: give GRID.toml, --vary KEY=V,V, or both")
    content: dict[str, Any] = sweeping.read_settings(grid) if grid is not None else {}
    chosen = sweeping.Grid.of({**content, **sweeping.parse_axes(vary or [])})
    if ray is None:
        get_ready(workers)
    if not json:
        sweeping.print_cost(chosen, out, workers)
    with show.telling_how_to_resume(out), show.job_bar(quiet=json) as progress:
        outcome = sweeping.sweep(chosen, out, workers=workers, ray=ray, by=by, progress=progress)
    page = report.build(out) if outcome.done else None
    if json:
        show.print_json(
            {
                "directory": out,
                "done": outcome.done,
                "failed": outcome.failed,
                "report": page,
                "cells": sweeping.results(out).to_dict("records"),
            }
        )
    else:
        for name, problem in outcome.failed.items():
            show.warn(f"cell {name} failed: {problem}")
        show.console().print(f"{outcome.done} cells done, {len(outcome.failed)} failed")
        if page is not None:
            show.path("report", page)
    if outcome.failed:
        raise typer.Exit(1)
