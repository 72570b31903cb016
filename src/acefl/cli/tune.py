"""`acefl tune`: successive halving over a learning rate, and tau or buffer, for one method."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from acefl.cli import options
from acefl.cli.flatten import with_options

if TYPE_CHECKING:
    from acefl.studies.tune import Tuning


@with_options
def tune(
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    method: options.OneMethod = "ACE",
    budget: Annotated[float, options.option(options.BUDGET, "N", "How many whole runs it may cost")] = 12.0,
    lr_centre: Annotated[
        float,
        options.option(
            options.RATE, "X", "Rates are looked for a factor of 128 either way", callback=options.check_centre
        ),
    ] = 0.25,
    by: options.By = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Search all settings that matter to the method, not only lr, tau and buffer",
            rich_help_panel=options.RATE,
        ),
    ] = False,
    out: Annotated[
        Path | None, options.option(options.OUTPUT, "DIR", "Write it there; a search there that was stopped goes on")
    ] = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Find a learning rate for one method, and its tau or buffer.

    Successive halving within a budget, on a seed that no result is reported on:
    trials get a quarter of a run, the better half of them half a run, the better
    half of these a whole one. A tau or buffer that you name stays as it is. With
    --all, so does every setting that is not at its default.

    Examples:
      acefl tune
      acefl tune --method ACED --spread 10 --arrivals 5000
      acefl tune --by heldout_slow_accuracy
      acefl tune --method FedAsync --all --budget 20
      acefl tune --method 'ACED(tau=300)' --budget 20 --out tuning
      acefl run --method ASGD --lr "$(acefl tune --method ASGD --json | jq .best)"
    """
    from acefl.cli import show
    from acefl.cli.prepare import prepare
    from acefl.rules import label
    from acefl.studies import cost
    from acefl.studies.pools import get_ready
    from acefl.studies.spec import TUNING_SEED, RunSpec
    from acefl.studies.tune import ALL, search_ranges
    from acefl.studies.tune import tune as search

    [rule] = options.parse_methods([method])
    get_ready(workers)
    ready = prepare(task, scenario, stop, [rule], TUNING_SEED)
    usual = search_ranges(rule, ready.task.clients)
    unnamed = [name for name in usual if name != "lr" and f"{name}=" not in method.replace(" ", "")]
    if not json:
        plan = RunSpec(ready.settings, rule, math.nan, ready.scenario, ready.stop, TUNING_SEED)
        ready = ready.expecting(cost.of_search(plan, budget, workers))
    with show.telling_how_to_resume(out), show.job_bar(quiet=json, ready=ready) as progress:
        found = search(
            ready.settings,
            rule,
            scenario=ready.scenario,
            stop=ready.stop,
            over=ALL if everything else unnamed,
            budget=budget,
            lr_centre=lr_centre,
            by=by,
            out=out,
            workers=workers,
            progress=progress,
        )
    best = found.lr if math.isfinite(found.best.score) else None
    if json:
        result: dict[str, Any] = {"method": label(found.rule), "task": ready.settings, "objective": found.objective}
        spent = {"runs": found.budget, "spent": found.spent, "arrivals": found.arrivals}
        result |= {"best": best, "settings": found.best.settings, "budget": spent, "directory": out}
        result["trials"] = [
            {**one.settings, "share": one.quarters / 4, found.objective: one.score, "arrivals": one.arrivals}
            for one in found.trials
        ]
        show.print_json(result | {"expectation": ready.expectation, "warnings": ready.warnings})
    else:
        show.console().print(_trials(found, best))
        show.console().print(found.cost)
        if out is not None:
            show.path("report", out / "report.html")
    if best is None:
        rates = sorted(trial.settings["lr"] for trial in found.trials)
        show.warn(f"every rate from {rates[0]:.3g} to {rates[-1]:.3g} diverged: try a smaller --lr-centre")
        raise typer.Exit(1)


def _trials(found: Tuning, best: float | None) -> Table:
    from acefl.core.metrics import LARGER, SMALLER
    from acefl.core.ranges import written
    from acefl.report import metrics

    metric = metrics.by_key(found.objective, {found.objective: LARGER if found.larger else SMALLER})
    names = list(found.best.settings)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*names, "of a run", metric.heading, ""):
        table.add_column(heading, justify="right" if heading else "left")
    for trial in sorted(found.trials, key=lambda one: (one.settings["lr"], one.quarters)):
        score = metric.write(trial.score) if math.isfinite(trial.score) else "diverged"
        style, mark = ("bold", "best") if best is not None and trial == found.best else ("", "")
        share = {1: "1/4", 2: "1/2", 4: "all"}[trial.quarters]
        cells = [*(written(trial.settings[name], 6) for name in names), share, score, mark]
        table.add_row(*[Text(cell, style=style) for cell in cells])
    return table
