"""`acefl compare`: methods against each other, fairly."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

from acefl.cli import options
from acefl.cli.flatten import with_options


@with_options
def compare(
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    method: options.Methods = None,
    seeds: options.Seeds = "3",
    evaluations: options.Evaluations = 50,
    lr: options.Rates = None,
    lr_centre: options.RateCentre = 0.25,
    by: options.By = None,
    optimizer: options.ServerOptimizer = None,
    schedule: options.RateSchedule = None,
    out: Annotated[
        Path,
        options.option(
            options.OUTPUT, "DIR", "Where to write; replaces a finished record, goes on with an interrupted one"
        ),
    ] = Path("acefl-compare"),
    title: Annotated[str, options.option(options.OUTPUT, "TEXT", "Of the report")] = "",
    logger: options.LoggerName = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Compare methods, each with its own tuned learning rate.

    Without options: the paper's six methods on handwritten digits, 100 clients
    whose speed goes with their data, 10,000 uploads, 3 seeds. Half a minute later
    there is a table on the terminal and a report in acefl-compare/report.html.
    Interrupted or killed, the same command goes on where it was.

    Examples:
      acefl compare
      acefl compare --method ACE --method 'ACED(tau=300)' --seeds 5
      acefl compare --method ACE --method FedBuff --lr ACE=0.1 --lr FedBuff=1
      acefl compare --task mymodule:make_task --out mine
      acefl compare --task quadratic --spread 10 --seeds 1 --out quick
      acefl compare --target accuracy=0.9 --by heldout_client_loss
      acefl compare --clock tick --delay 5 --steps 500 --json > result.json
    """
    chosen = options.parse_seeds(seeds)
    from acefl.cli import show
    from acefl.cli.prepare import prepare
    from acefl.core.files import UNFINISHED, check_replaceable, read_json
    from acefl.report import tables
    from acefl.studies import cost
    from acefl.studies.compare import compare as run_study
    from acefl.studies.compare import rates_of
    from acefl.studies.pools import get_ready
    from acefl.studies.spec import RunSpec

    check_replaceable(out, goes_on=True)
    rules, step = options.parse_methods(method), options.parse_step(optimizer, schedule)
    get_ready(workers)
    ready = prepare(task, scenario, stop, rules, chosen[0])
    rates = options.parse_rates(lr)
    if not json:
        plan = RunSpec(
            ready.settings, rules[0], math.nan, ready.scenario, ready.stop, chosen[0], evaluations, watch=True, **step
        )
        plans = [dataclasses.replace(plan, rule=rule) for rule in rules]
        tuned = sum(rate is None for rate in rates_of(rules, rates).values())
        ready = ready.expecting(cost.of_comparison(plans, tuned, chosen, workers))
    with (
        show.telling_how_to_resume(out, begun=out / UNFINISHED),
        show.job_bar(quiet=json, ready=ready, then="writing the report") as progress,
    ):
        run_study(
            ready.settings,
            rules,
            out=out,
            scenario=ready.scenario,
            stop=ready.stop,
            seeds=chosen,
            lr=rates,
            lr_centre=lr_centre,
            by=by,
            evaluations=evaluations,
            workers=workers,
            title=title,
            progress=progress,
            logger=logger,
            **step,
        )
    table, result = tables.summary_table(out), read_json(out / "compare.json")
    if json:
        result |= {"expectation": ready.expectation, "warnings": ready.warnings}
        result |= {"summary": table.to_dict("records"), "directory": out, "report": out / "report.html"}
        show.print_json(result)
    else:
        show.print_summary(table)
        show.console().print(f"took {result['wall_seconds']:.0f} s")
        show.path("report", out / "report.html")
