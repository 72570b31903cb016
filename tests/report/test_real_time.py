"""The page of a run with real clients: seconds instead of virtual time, what travelled, and who was at work when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait
from tests.report.fixtures import SIX, write_run

from acefl import report
from acefl.report import figures, recorded

CLIENTS, ARRIVALS = 5, 60
UP, DOWN = 2_404, 40_000


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """A run as a federation records it: one answer of client 2 was refused, and client 4 was away for a while."""
    directory = write_run(tmp_path / "run", SIX[0], seed=0, clients=CLIENTS, arrivals=ARRIVALS)
    path = directory / "events.parquet"
    events = pd.read_parquet(path).assign(uplink=UP, downlink=DOWN)
    refused = events.index[events["client"] == 2][0]
    events["accepted"] = events.index != refused
    events["reason"] = np.where(events.index == refused, "wrong-shape", "")
    events.assign(sent=(events["time"] - 0.25).clip(lower=0.0)).to_parquet(path)
    change(directory / "config.json", scenario={"clock": "wall", "fleet": "flower"}, ended="no node for 600 s")
    return directory


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_time_is_in_seconds_everywhere(federation: Path) -> None:
    page = report.build(federation).read_text("utf-8")
    assert "irtual time" not in page
    assert "against seconds" in page
    assert "<th>seconds</th>" in page
    assert "in real time" in page
    assert "One run: nothing here says how much another run would differ." in page
    assert "no node for 600 s" in page


def test_what_travelled_is_said_per_answer_and_in_all(federation: Path) -> None:
    page = report.build(federation).read_text("utf-8")
    assert "2.4 kB (144 kB in all) up and 40 kB (2.4 MB in all) down per answer" in page


def test_the_timeline_has_every_answer_at_its_place(federation: Path) -> None:
    events = pd.read_parquet(federation / "events.parquet")
    drawn = figures.timeline(recorded.load(federation))
    assert drawn is not None
    [panel] = drawn.panels
    work, accepted, refused = panel.traces
    assert (len(accepted["x"]), len(refused["x"])) == (ARRIVALS - 1, 1)
    assert refused["y"] == [2]
    assert refused["text"] == ["wrong-shape"]
    pieces = [(work["y"][at], *work["x"][at : at + 2]) for at in range(0, len(work["x"]), 3)]
    expected = zip(events["client"], events["sent"], events["time"], strict=True)
    assert np.asarray(pieces) == pytest.approx(np.asarray(list(expected)), rel=1e-5)
    assert work["x"][2::3] == [None] * ARRIVALS, "pieces of work are joined"


@pytest.mark.parametrize(
    "changed",
    [{"scenario": {"clock": "event"}}, {"scenario": {"clock": "wall", "replay_of": "ACE"}}],
    ids=["simulated", "replayed"],
)
def test_no_timeline_where_nobody_real_was_at_work(federation: Path, changed: dict[str, Any]) -> None:
    change(federation / "config.json", **changed)
    assert figures.timeline(recorded.load(federation)) is None


def test_no_timeline_of_more_clients_than_can_be_told_apart(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", SIX[0], seed=0, clients=100, arrivals=ARRIVALS)
    change(directory / "config.json", scenario={"clock": "wall", "fleet": "ray"})
    assert figures.timeline(recorded.load(directory)) is None
    assert "against seconds" in report.build(directory).read_text("utf-8")


def test_a_browser_draws_it(federation: Path, browser: Chrome) -> None:
    browser.get(report.build(federation).as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.drawn"))
    marks = "return document.querySelectorAll('#timeline-0 .traces .mark').length"
    assert browser.execute_script(marks) == ARRIVALS
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
