"""A run that is told to stop leaves a checkpoint with all it had accepted, and the same call goes on from there."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.supercore.run import RunNotRunningException
from tests.fleets.flower.test_learning_rate import START, InTurn, train

from acefl import ACE, Every, Stop, load
from acefl.core.errors import Interrupted
from acefl.flower import run_async
from acefl.runs.observers import Observer

ENOUGH, ALL = 17, 40  # arrivals when somebody says stop, and of the whole budget


class Stopping(Observer):
    """Says stop after so many arrivals, as the SuperLink or a person does."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop, self.arrivals = stop, 0

    def arrived(self, arrival: object, reason: str) -> None:
        self.arrivals += 1
        if self.arrivals == ENOUGH:
            self._stop()


class Stopped(InTurn):
    """`flwr stop`: every call of the grid raises what Flower raises then, which is no Exception."""

    def __init__(self) -> None:
        super().__init__(train, 3)
        self.over_now = threading.Event()

    def get_node_ids(self) -> Iterable[int]:
        self._check()
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._check()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._check()
        return super().pull_messages(message_ids)

    def _check(self) -> None:
        if self.over_now.is_set():
            raise RunNotRunningException


def go(grid: InTurn, out: Path, observer: Stopping) -> None:
    run_async(
        grid, ACE(warmup="seen"), ArrayRecord({"w": Array(START.numpy())}), stop=Stop(arrivals=ALL), nodes=3, out=out,
        checkpoint=Every(arrivals=1000), observers=[observer], drain=1.0,
    )  # fmt: skip


def resumed(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Start the same again, and see that nothing was lost and nothing counted twice."""
    after = Stopping(lambda: None)
    with caplog.at_level(logging.INFO, "acefl"):
        go(InTurn(train, 3), out, after)
    made = load(out)
    assert f"found a checkpoint in {out}" in caplog.text
    assert made.arrivals >= ALL
    assert len(made.events) == made.arrivals
    assert made.arrivals - after.arrivals >= ENOUGH, "arrivals that had been accepted were lost"


def test_flwr_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Stopped()
    with pytest.raises(Interrupted, match="`flwr run` again goes on from the checkpoint"):
        go(grid, tmp_path / "run", Stopping(grid.over_now.set))
    resumed(tmp_path / "run", caplog)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_turn_to_be_over_and_then_reaches_flowers_handler(
    number: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reached: list[int] = []
    before = signal.signal(number, lambda number, frame: reached.append(number))
    try:
        with pytest.raises(Interrupted):
            go(InTurn(train, 3), tmp_path / "run", Stopping(lambda: os.kill(os.getpid(), number)))
    finally:
        signal.signal(number, before)
    assert reached == [number]
    resumed(tmp_path / "run", caplog)
