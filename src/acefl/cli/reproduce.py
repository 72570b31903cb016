"""`acefl reproduce`: the paper's figures and tables, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acefl.cli import options
from acefl.paper import FORMS, NAMES


def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=lambda: list(NAMES)),
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the data set [dim]\\[downloaded from the hub][/dim]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A miniature for a CPU: small model, few clients and steps, one seed")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="printed: the paper's settings; tuned: every lr by the same search, equal uploads",
            **options.one_of(FORMS),
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="How many seeds, or which, as in 4,7 [dim]\\[the paper's 5][/dim]")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="resnet18 or cnn; a hub name, folder, 'words' or 'tiny' for text")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parameters (safetensors) for the pre-trained start among the readings"),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; goes on with what is there [dim]\\[acefl-NAME][/dim]"),
    ] = None,
    limit: Annotated[float | None, typer.Option(metavar="S", help="Start nothing more after so many seconds")] = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Reproduce a figure or table of the paper.

    NAME is one of cifar10-main, cifar10-extended, dropout, cifar100-heatmap,
    news20-table, quantization, rates-table, overheads-table, amplification,
    readings.

    Writes every run as a line of JSON, figures, and a README with our value
    beside the paper's. Killed, it goes on where it was when called again.

    Examples:
      acefl reproduce rates-table
      acefl reproduce cifar10-main --data ~/cifar --quick
      acefl reproduce cifar10-main --data ~/cifar --device cuda --form tuned
      acefl reproduce readings --data ~/cifar --start resnet18.safetensors
      acefl reproduce news20-table --data ~/20news --device cuda
    """
    from acefl import paper as recipes
    from acefl.cli import show
    from acefl.runs.record import command_line

    chosen = recipes.recipe(name)
    request = chosen.request(
        quick=quick,
        form=form or chosen.forms[0],
        seeds=options.parse_seeds(seeds) if seeds is not None else None,
        folder=str(data) if data is not None else None,
        model=model,
        start=str(start) if start is not None else None,
        device=device,
    )
    folder = out or Path(f"acefl-{name}")
    with show.job_bar(quiet=json) as progress:
        outcome = recipes.reproduce(
            name,
            request,
            folder,
            command=command_line(f"acefl reproduce {name}"),
            workers=workers,
            limit=limit,
            progress=progress,
        )
    if json:
        show.print_json(
            {
                "directory": folder,
                "done": outcome.done,
                "left": outcome.left,
                "failed": outcome.failed,
                "readme": folder / "README.md",
            }
        )
    else:
        for cell, problem in outcome.failed.items():
            show.warn(f"run {cell} failed: {problem}")
        show.console().print(f"{outcome.done} runs done, {outcome.left} left, {len(outcome.failed)} failed")
        show.path("page", folder / "README.md")
    if outcome.failed:
        raise typer.Exit(1)
