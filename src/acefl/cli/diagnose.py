"""`acefl diagnose`: how wrong is each method's update, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acefl.cli import options
from acefl.cli.flatten import with_options

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

PARTS = ("terms", "amplification", "rate")


@with_options
def diagnose(
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    method: options.Methods = None,
    seeds: options.Seeds = "1",
    lr: options.Rates = None,
    every: Annotated[
        int | None,
        options.option(options.BUDGET, "N", "Uploads between two measured steps", "a hundredth of the budget", min=1),
    ] = None,
    part: Annotated[
        list[str] | None,
        options.option(
            options.BUDGET,
            "NAME",
            f"Only this of {', '.join(PARTS)}; repeat it for more",
            "all",
            autocompletion=lambda: list(PARTS),
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="In seconds, on a small task; numbers mean little", rich_help_panel=options.BUDGET
        ),
    ] = False,
    out: Annotated[Path, options.option(options.OUTPUT, "DIR", "Where to write; replaces an earlier record")] = Path(
        "acefl-diagnose"
    ),
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Measure how wrong each method's update is, and why.

    An update differs from the true gradient by sampling noise, by participation
    bias (not everybody is in it alike) and by delay (it was computed on old
    models). Each is measured here, method by method, on your task; then how bias
    and delay grow with unequal speeds and data, and how fast the gradient falls.

    Examples:
      acefl diagnose
      acefl diagnose --quick
      acefl diagnose --method ACE --method FedBuff --spread 100 --part terms
      acefl diagnose --task quadratic --heterogeneity 2 --seeds 3
    """
    chosen = options.parse_seeds(seeds)
    from acefl.cli import show
    from acefl.cli.prepare import prepare
    from acefl.core.files import check_replaceable, read_json
    from acefl.report import diagnosis
    from acefl.studies.diagnose import diagnose as measure

    check_replaceable(out)
    rules = options.parse_methods(method)
    if quick and task == options.TaskOptions():
        task = options.TaskOptions(task="quadratic", clients=10, dim=5)
    ready = prepare(task, scenario, stop, rules, chosen[0])
    with show.job_bar(quiet=json, ready=ready, then="writing the report") as progress:
        measure(
            ready.settings,
            rules,
            out=out,
            scenario=ready.scenario,
            stop=None if stop == options.StopOptions() else ready.stop,
            seeds=chosen,
            lr=options.parse_rates(lr),
            every=every,
            parts=part or PARTS,
            quick=quick,
            workers=workers,
            progress=progress,
        )
    found = diagnosis.load(out)
    impact, who, slopes = diagnosis.impact(found), diagnosis.participation(found), diagnosis.slopes(found)
    if json:
        result = read_json(out / "diagnose.json")
        result |= {"findings": diagnosis.sentences(found), "impact": impact.to_dict("records")}
        result |= {"participation": who.to_dict("records"), "slopes": slopes.to_dict("records")}
        result |= {"directory": out, "report": out / "report.html"}
        show.print_json(result)
        return
    for sentence in diagnosis.sentences(found):
        show.console().print(sentence)
    shown = (diagnosis.readable, impact), (diagnosis.readable, who), (diagnosis.readable_slopes, slopes)
    for readable, table in shown:
        if len(table):
            show.console().print(_table(readable(table)))
    show.console().print(f"took {found.content['wall_seconds']:.0f} s")
    show.path("report", out / "report.html")


def _table(text: pd.DataFrame) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in text.columns:
        table.add_column(str(heading), justify="left" if heading in ("method", "task") else "right", vertical="bottom")
    for row in text.itertuples(index=False):
        table.add_row(*map(str, row))
    return table
