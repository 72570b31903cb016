"""The command line, thin: commands live in `acefl.cli`, one file each.

Whatever goes wrong for a reason that a person can mend ends in one line on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from types import FrameType
from typing import Any

from acefl.core.errors import AceflError, Interrupted

BROKEN, WRONG_INPUT, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `arguments` are those of the process when left out."""
    try:
        from acefl.cli.app import UsageError, app

        try:
            with _exit_on_sigterm():
                code = app(args=arguments, prog_name="acefl", standalone_mode=False) or 0
        except UsageError as error:
            return _fail(_with_help(error), WRONG_INPUT)
    except KeyboardInterrupt:  # while the lines above were being loaded; click catches later ones
        code = INTERRUPTED
    except Interrupted as interruption:
        return _fail(str(interruption), INTERRUPTED)
    except AceflError as error:
        return _fail(str(error), WRONG_INPUT)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), WRONG_INPUT)
    except MemoryError:
        return _fail("out of memory: try fewer clients, or a smaller model", BROKEN)
    except BrokenExecutor:
        return _fail("a worker process was killed, perhaps for want of memory: try fewer --workers", BROKEN)
    if code == INTERRUPTED:
        return _fail("interrupted; nothing was written", INTERRUPTED)
    return int(code)


def _with_help(error: Any) -> str:
    message = str(error.format_message()).rstrip(".")
    if error.ctx is None:
        return message
    commands = getattr(error.ctx.command, "commands", None)
    if commands:
        allowed = [name for name, command in commands.items() if not command.hidden]
        message = f"{message.partition('. Did')[0]}; allowed: {', '.join(allowed)}"
    return f"{message} (see {error.ctx.command_path} --help)"


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
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
