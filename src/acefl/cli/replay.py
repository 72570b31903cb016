"""`acefl replay`: what other methods would have done with a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acefl.cli import options
from acefl.cli.flatten import with_options
from acefl.core.errors import require


@with_options
def replay(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="RUN")],
    task: options.TaskOptions,
    method: Annotated[list[str], options.method_option(f"{options.A_METHOD} 'ACED(tau=50)'; again for each")],
    lr: Annotated[
        float | None,
        options.option(options.RATE, "X", "The server's learning rate", "the run's", callback=options.check_rate),
    ] = None,
    evaluations: options.Evaluations = 50,
    out: Annotated[
        Path,
        options.option(
            options.OUTPUT, "DIR", "Where to write the replays and their report; replaces an earlier record"
        ),
    ] = Path("acefl-replay"),
    json: options.Json = False,
) -> None:
    """Replay a recorded run with other methods.

    RUN is a run directory: of a simulation, of Ray, or of a Flower federation.
    Clients get and send models exactly when they did there; what they learn is
    computed anew, on the run's own task, or on a stand-in named with --task (the
    data of a real federation never was on the server). A task of your own is
    named again, as it was.

    Examples:
      acefl replay runs/fedbuff --method ACE --method 'ACED(tau=50)'
      acefl replay federation --task digits --method 'ACED(tau=50)' --lr 0.25
      acefl replay runs/mine --task 'mymodule:make_task(batch=8)' --method ACE
    """
    from acefl import report as page
    from acefl.cli import show
    from acefl.cli.prepare import compute_on_one_thread
    from acefl.core.files import check_replaceable
    from acefl.runs import record
    from acefl.studies.replay import compare

    check_replaceable(out)
    compute_on_one_thread()
    recorded = record.load(directory)
    named = _named(task, recorded) if options.written(context, vars(task)) else None
    rules = options.parse_methods(method)
    compare(directory, rules, out=out, lr=lr, task=named, evaluations=evaluations)
    table = page.summary_table(out)
    if json:
        result: dict[str, Any] = {"run": directory, "directory": out, "report": out / "report.html"}
        show.print_json(result | {"summary": table.to_dict("records")})
    else:
        show.print_summary(table)
        show.path("report", out / "report.html")


def _named(task: options.TaskOptions, recorded: Any) -> dict[str, Any]:
    """The task that was named; a stand-in of the library's has as many clients as the run had."""
    clients = len(recorded.participation)
    good = task.clients in (None, clients) or options.is_own(task.task)
    require(good, f"clients is {task.clients}; allowed: {clients}, as many as the run had")
    return task.build() | ({} if options.is_own(task.task) else {"clients": clients})
