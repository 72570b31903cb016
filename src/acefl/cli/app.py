"""The commands put together: a new one is a new file here and its name in this list."""

from __future__ import annotations

from typing import Annotated

import typer

import acefl
from acefl.cli import (
    compare,
    diagnose,
    doctor,
    leaderboard,
    plan,
    replay,
    report,
    reproduce,
    run,
    sweep,
    tune,
)
from acefl.core.errors import InvalidInput

app = typer.Typer(
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (compare, run, tune, sweep, leaderboard, diagnose, plan, replay, reproduce, report, doctor):
    app.command()(getattr(module, module.__name__.rpartition(".")[2]))


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def advise() -> None:
    """Removed: what another method would have done is answered on the recorded arrivals themselves."""
    raise InvalidInput("advise was removed; use acefl replay RUN --method NAME on a recorded run, or acefl compare")


# What typer raises for a wrong command line; it exports only this subclass. Since 0.26 it is not click's class.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"acefl {acefl.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def acefl_(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Asynchronous federated learning in which every client counts, the slow ones too.

    Examples:
      acefl compare                      six methods on real data, and a report
      acefl compare --task quadratic     the same where everything is known
      acefl run --method ACE --lr 0.25   one method, one seed
      acefl tune --method ASGD           find a learning rate, and tau or buffer
      acefl sweep grid.toml              a grid of runs, gone on with if killed
      acefl leaderboard --quick          all methods on a fixed set of scenarios
      acefl diagnose                     how wrong are the updates, and why
      acefl plan --params 11M --clients 1000   what the table will cost
      acefl replay RUN --method ACE      what would ACE have done with this run?
      acefl reproduce rates-table        a table of the paper, ours beside theirs
      acefl report acefl-compare         make the page again from recorded files
      acefl doctor                       what is installed, and does it work

    Each command has its own --help, with more examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
