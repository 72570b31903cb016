"""`acefl tune`: the learning-rate search of `acefl compare`, for one method."""

from __future__ import annotations

import math
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from acefl.commands import options
from acefl.commands.flatten import with_options


@with_options
def tune(
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    method: options.Method = "ACE",
    lr_centre: options.RateCentre = 0.25,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Find a learning rate for one method.

    The search of acefl compare, on a seed that no result is reported on.

    Examples:
      acefl tune
      acefl tune --method 'ACED(tau=300)' --spread 10 --arrivals 5000
      acefl run --method ASGD --lr "$(acefl tune --method ASGD --json | jq .best)"
    """
    from acefl import experiment
    from acefl.commands import show
    from acefl.commands.prepare import prepare
    from acefl.rules import label

    [rule] = options.parse_methods([method])
    ready = prepare(task, scenario, stop, [rule], experiment.TUNING_SEED)
    with show.job_bar(quiet=json, ready=ready) as progress:
        search = experiment.tune(
            ready.settings,
            rule,
            scenario=ready.scenario,
            stop=ready.stop,
            lr_centre=lr_centre,
            workers=workers,
            progress=progress,
        )
    objective, trials = ready.task.objective, sorted(search.scores.items())
    best = search.best if math.isfinite(search.scores[search.best]) else None
    if json:
        result: dict[str, Any] = {"method": label(rule), "task": ready.settings, "objective": objective, "best": best}
        result |= {"trials": [{"lr": lr, objective: score} for lr, score in trials]}
        show.print_json(result | {"expectation": ready.expectation, "warnings": ready.warnings})
    else:
        show.console().print(_trials(objective, trials, best))
    if best is None:
        show.warn(f"every rate from {trials[0][0]:.3g} to {trials[-1][0]:.3g} diverged: try a smaller --lr-centre")
        raise typer.Exit(1)


def _trials(objective: str, trials: list[tuple[float, float]], best: float | None) -> Table:
    from acefl.report import metrics

    metric = next(metric for metric in metrics.EVERY if metric.key == objective)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("lr", metric.heading, ""):
        table.add_column(heading, justify="right" if heading else "left")
    for lr, score in trials:
        written = metric.write(score) if math.isfinite(score) else "diverged"
        style, mark = ("bold", "best") if lr == best else ("", "")
        table.add_row(*[Text(cell, style=style) for cell in (f"{lr:.6g}", written, mark)])
    return table
