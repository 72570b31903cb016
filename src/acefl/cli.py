"""The command line, thin: commands live in `acefl.commands`, one file each.

Whatever goes wrong for a reason that a person can mend ends in one line on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from types import FrameType
from typing import Annotated

import click
import typer

import acefl
from acefl.commands import compare, doctor, report, run, tune
from acefl.errors import AceflError

BROKEN, WRONG_INPUT, INTERRUPTED, TERMINATED = 1, 2, 130, 143

app = typer.Typer(
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (compare, run, tune, report, doctor):
    app.command()(getattr(module, module.__name__.rpartition(".")[2]))


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
      acefl tune --method ASGD           find a learning rate
      acefl report acefl-compare         make the page again from recorded files
      acefl doctor                       what is installed, and does it work

    Each command has its own --help, with more examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `arguments` are those of the process when left out."""
    try:
        with _removing_what_is_half_written():
            code = app(args=arguments, prog_name="acefl", standalone_mode=False) or 0
    except click.UsageError as error:
        return _fail(_with_help(error), WRONG_INPUT)
    except AceflError as error:
        return _fail(str(error), WRONG_INPUT)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), WRONG_INPUT)
    except BrokenExecutor:
        return _fail("a worker process was killed, perhaps for want of memory: try fewer --workers", BROKEN)
    if code == INTERRUPTED:
        return _fail("interrupted; nothing was written", INTERRUPTED)
    return int(code)


def _with_help(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    if error.ctx is None:
        return message
    if isinstance(error.ctx.command, click.Group) and error.ctx.invoked_subcommand is None:
        message += f"; commands: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    return f"{message} (see {error.ctx.command_path} --help)"


def _fail(message: str, code: int) -> int:
    click.echo(f"{click.style('error:', fg='red')} {' '.join(message.split())}", err=True)
    return code


@contextlib.contextmanager
def _removing_what_is_half_written() -> Iterator[None]:
    """Let a scheduler's SIGTERM clean up as Ctrl-C does, instead of ending the process where it stands."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
