"""`acefl run`: one method, one seed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from acefl.commands import options
from acefl.commands.flatten import with_options

if TYPE_CHECKING:
    from acefl.record import Run


@with_options
def run(
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    lr: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="The server's learning rate; acefl tune finds one",
            callback=options.check_rate,
            rich_help_panel=options.RATE,
        ),
    ],
    method: options.Method = "ACE",
    seed: options.Seed = 0,
    evaluations: options.Evaluations = 50,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to write the run and its report; replaces an earlier record",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run one method on one seed, with a learning rate of your choice.

    Prints how it ended; with --out also writes the run and its report.

    Examples:
      acefl run --lr 0.25
      acefl run --method 'FedBuff(buffer=5)' --lr 0.5 --seed 7 --out runs/fedbuff
      acefl run --task quadratic --dim 20 --lr 0.1 --time 500 --json
    """
    from acefl import record, report, simulate
    from acefl.commands import show
    from acefl.commands.prepare import prepare

    if out is not None:
        record.refuse_foreign(out)
    [rule] = options.parse_methods([method])
    ready = prepare(task, scenario, stop, [rule], seed)
    with contextlib.ExitStack() as whole:
        folder = whole.enter_context(record.whole_directory(out)) if out is not None else None
        if not json:
            show.foretell(ready)
        with show.fraction_bar(method, quiet=json) as progress:
            finished = simulate(
                ready.task,
                rule,
                lr=lr,
                scenario=ready.scenario,
                stop=ready.stop,
                seed=seed,
                out=folder,
                evaluations=evaluations,
                progress=progress,
            )
        if folder is not None:
            report.build(folder)
    if json:
        result = {**finished.config, **finished.summary, "participation": finished.participation}
        result |= {"expectation": ready.expectation, "warnings": ready.warnings}
        if out is not None:
            result |= {"directory": out, "report": out / "report.html"}
        show.print_json(result)
        return
    show.console().print(_final(finished))
    if finished.diverged:
        show.warn("the model diverged and the run ended early: try a smaller --lr")
    if out is not None:
        show.path("report", out / "report.html")


def _final(run: Run) -> Table:
    """The last evaluation and what it took, a number per line."""
    from acefl.commands import show
    from acefl.report import metrics

    rows = {m.heading: m.write(run.final[m.key]) for m in metrics.EVERY if m.key in run.final}
    rows |= {"server steps": f"{run.steps:,}", "uploads": f"{len(run.events):,}", "virtual time": f"{run.time:,.0f}"}
    rows |= {f"refused: {reason}": f"{count:,}" for reason, count in run.refused.items()}
    rows |= {"took": f"{run.wall_seconds:.1f} s"}
    return show.pairs(rows, justify="right")
