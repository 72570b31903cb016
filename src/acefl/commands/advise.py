"""`acefl advise`: which method, with which settings, for the federation a run was recorded of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acefl.commands import options
from acefl.commands.flatten import with_options
from acefl.errors import InvalidInput

if TYPE_CHECKING:
    from acefl.record import Run


@with_options
def advise(
    context: typer.Context,
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A recorded run; without it, a short one is made")
    ] = None,
    board: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A leaderboard of your own to go by [dim]\\[acefl's][/dim]", show_default=False
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Recommend a method, its tau or buffer and learning rates, with the evidence.

    Reads what a recorded run shows of its clients: how often they take part, how
    stale their updates are, who went silent. Without a run, a short one of the task
    and scenario that are given is made first.

    Examples:
      acefl advise runs/last-week
      acefl advise --task digits --spread 30
      acefl advise runs/last-week --json
    """
    from acefl import advise as advising
    from acefl import record
    from acefl.commands import show
    from acefl.standings import Board

    if directory is not None:
        _refuse_settings_beside_a_run(context)
        run = record.load(directory)
    else:
        run = _probe(task, scenario, json)
    advice = advising.advise(run, Board.read(board) if board is not None else None)
    if json:
        show.print_json(dataclasses.asdict(advice))
        return
    console = show.console()
    rates = f", lr from {advice.lr[0]:g} to {advice.lr[1]:g}" if advice.lr is not None else ""
    console.print(f"Take {advice.method}{rates}.", style="bold", markup=False)
    for heading, lines in (("Why:", advice.evidence), ("What this cannot know:", advice.unknown)):
        console.print(f"\n{heading}")
        for line in lines:
            console.print(f"  - {line}", markup=False)


def _refuse_settings_beside_a_run(context: typer.Context) -> None:
    for option in options.written(context, beside=("directory", "board", "json")):
        raise InvalidInput(f"{option} is given beside a run, whose settings are recorded")


def _probe(task: options.TaskOptions, scenario: options.ScenarioOptions, quiet: bool) -> Run:
    """A short run by ASGD, which treats whoever arrives alike, at a rate found for it."""
    from acefl import experiment, halving
    from acefl.commands import show
    from acefl.commands.prepare import prepare
    from acefl.rules import ASGD
    from acefl.stop import Stop

    ready = prepare(task, scenario, options.StopOptions(), [ASGD()], 0)
    stop = Stop(arrivals=50 * ready.task.clients)
    with show.job_bar(quiet=quiet, ready=ready) as progress:
        found = halving.tune(
            ready.settings, ASGD(), scenario=ready.scenario, stop=stop, budget=4.0, workers=1, progress=progress
        )
        return experiment.make(experiment.Job(ready.settings, ASGD(), found.lr, ready.scenario, stop, seed=0))
