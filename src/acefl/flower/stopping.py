"""A ServerApp that is told to stop leaves a checkpoint first.

`flwr stop`, Ctrl-C and a supervisor's SIGTERM all reach a ServerApp as a signal (Flower sends itself SIGINT when the
SuperLink no longer knows the run). Flower's own handler ends the process wherever it is; here it has to wait until the
turn of the loop is over, which takes a second, and the state is saved.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Whether somebody has asked the process to stop, and how."""

    asked: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """A handler that only remembers; asked a second time, whoever asks means now.

        Args:
            number: Of the signal.
            frame: Unused.
        """
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = number


@contextmanager
def noted_signals() -> Iterator[StopSignals]:
    """Note signals instead of obeying them; in the end whoever handled them before gets what came.

    Outside the main thread, where Flower's simulation runs ServerApps, signals cannot be handled: nothing is noted.
    """
    noted = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {number: signal.signal(number, noted.note) for number in SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted.asked is not None:
            signal.raise_signal(noted.asked)
