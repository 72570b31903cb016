"""Bars only where somebody watches, one kind of callback, and the same numbers with and without."""

from __future__ import annotations

import io
import sys

import pytest

import acefl
from acefl import ASGD, Stop
from acefl.core import progress
from acefl.core.progress import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(progress, "_OFTEN", 0.0)


@pytest.mark.usefixtures("at_once")
def test_in_a_pipe_there_is_no_bar_and_false_silences_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown(True, "work") as told:
        assert told is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    for quiet in (False, None):
        with shown(quiet, "work") as told:
            assert told is None
    with shown(print, "work") as told:
        assert told is print


@pytest.mark.usefixtures("at_once")
def test_a_terminal_shows_what_was_done_last(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with shown(True, "starting") as told:
        assert told is not None
        told(0, 7, "")
        told(3, 7, "ACE [seed 0] done")
    assert "ACE [seed 0] done" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()


def test_short_work_needs_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    task = acefl.tasks.quadratic(clients=3, dim=2)
    watched = acefl.simulate(task, ASGD(), lr=0.1, stop=Stop(arrivals=30))
    silent = acefl.simulate(task, ASGD(), lr=0.1, stop=Stop(arrivals=30), progress=False)
    assert terminal.getvalue() == ""
    assert watched.model.equal(silent.model)


@pytest.mark.usefixtures("at_once")
def test_a_notebook_shows_markup_of_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display", reason="IPython is not installed")
    put: list[str] = []

    class Handle:
        def update(self, html: object) -> None:
            put.append(html.data)  # type: ignore[attr-defined]

    def show(html: object, display_id: bool) -> Handle:
        Handle().update(html)
        return Handle()

    monkeypatch.setattr(progress, "_notebook", lambda: object())
    monkeypatch.setattr(display, "display", show)
    with shown(True, "starting") as told:
        assert told is not None
        told(0.25, 1.0, "<b>")
        told(1.0, 1.0, "ACE")
    assert "25%" in put[0]
    assert "&lt;b&gt;" in put[0]
    assert put[-1].startswith('<progress value="1" max="1">')
