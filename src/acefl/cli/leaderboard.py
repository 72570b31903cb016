"""`acefl leaderboard`: all methods on a fixed set of scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acefl.cli import options

if TYPE_CHECKING:
    from acefl.report.standings import Board


def leaderboard(
    method: Annotated[
        list[str] | None,
        options.method_option(
            "Joins the library's: your own as mypkg.mymodule:MyRule, or one of them with other settings"
        ),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Only the methods named, not the library's")] = False,
    task: Annotated[
        list[str] | None,
        options.option(
            None,
            "NAME",
            "In place of the board's two: 'digits(alpha=1.0)', or your own as mypkg.mymodule:make_task; again for each",
            autocompletion=lambda: list(options.TASKS),
        ),
    ] = None,
    natural: Annotated[
        bool,
        typer.Option(
            "--natural", help="On natural federations, speeds of phones tied to data, independent of it and reversed"
        ),
    ] = False,
    data: Annotated[
        list[str] | None,
        options.option(
            None,
            "NAME=FOLDER",
            "With --natural: files of a task that comes with none, as heart=data/heart-disease; again for each",
        ),
    ] = None,
    arrivals: Annotated[
        int | None,
        options.option(options.BUDGET, "N", "Accepted uploads per run: 6,000 by default, natural 3,000", min=1),
    ] = None,
    budget: Annotated[
        float | None,
        options.option(options.BUDGET, "N", "Whole runs that tuning a cell may cost: 12 by default, natural 8"),
    ] = None,
    seeds: options.Seeds = "5",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="All of it in minutes; the numbers mean nothing, and the board says so"),
    ] = False,
    out: Annotated[
        Path, options.option(options.OUTPUT, "DIR", "Where to write; an unfinished board there goes on")
    ] = Path("acefl-leaderboard"),
    show: Annotated[
        Path | None,
        options.option(options.OUTPUT, "DIR", "Print the board recorded there as Markdown, run nothing"),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option("--recorded", help="Print the board that comes with acefl", rich_help_panel=options.OUTPUT),
    ] = False,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Rank all methods on six scenarios and two tasks.

    Every method is tuned in every cell with the same budget, on a seed that is
    not reported, and then runs on all seeds. Cells land as they finish: killed,
    it goes on where it was when called again, and a method or a task that joins
    later costs its own cells only.

    Examples:
      acefl leaderboard --quick
      acefl leaderboard --natural --quick --out natural-board
      acefl leaderboard --natural --data heart=data/heart-disease --out hearts
      acefl leaderboard --workers 16 --out board
      acefl leaderboard --rule mypkg.mymodule:MyRule --out board
      acefl leaderboard --rule mypkg.mymodule:MyRule --only --out mine
      acefl leaderboard --task mypkg.mymodule:make_task --out mine
      acefl leaderboard --show board > board.md
      acefl leaderboard --recorded
    """
    chosen = options.parse_seeds(seeds)
    from acefl.cli import show as showing
    from acefl.paper import leaderboard as boards
    from acefl.report.standings import Board

    if show is not None or recorded:
        _print(Board.recorded() if show is None else Board.read(show), json)
        return
    own = options.parse_methods(method) if method else []
    with showing.telling_how_to_resume(out), showing.job_bar(quiet=json, then="writing the report") as progress:
        boards.leaderboard(
            own,
            out=out,
            only=only,
            tasks=task or (),
            natural=natural,
            data=_folders(data or []),
            arrivals=arrivals,
            budget=budget,
            seeds=chosen,
            quick=quick,
            workers=workers,
            progress=progress,
        )
    _print(Board.read(out), json)
    if not json:
        showing.path("report", out / "report.html")


def _folders(given: list[str]) -> dict[str, str]:
    """Folders by the name of their task."""
    from acefl.core.errors import require

    parts = [text.partition("=") for text in given]
    for name, sign, folder in parts:
        require(bool(name and sign and folder), f"data is {name + sign + folder!r}; allowed: NAME=FOLDER")
    return {name: folder for name, _, folder in parts}


def _print(board: Board, json: bool) -> None:
    from acefl.cli import show
    from acefl.report.standings import NOT_FOR_CITING

    if json:
        show.print_json(dict(board.content))
        return
    if board.quick:
        print(f"This board is {NOT_FOR_CITING}.\n")
    for task in board.tasks:
        print(f"{task}: {board.shown(task)}\n\n{board.markdown(task)}\n")
        if board.reference(task):
            print(f"{board.target_words(task)}:\n\n{board.times_markdown(task)}\n")
    print(f"{board.why_bold}\n{board.cost}.")
