"""Whatever text a record holds, every kind of page shows it as text, and makes no element of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.report.fixtures import SIX, write_comparison, write_run

from acefl import ACE, ASGD, Stop, report
from acefl.cli import main
from acefl.runs.record import settings_name
from acefl.studies.diagnose import diagnose
from acefl.studies.sweep import Grid, sweep
from acefl.studies.tune import tune

EVIL = "<script>evil()</script>"
QUADRATIC = {"name": "quadratic", "clients": 4, "dim": 2}


def compared(folder: Path) -> Path:
    return write_comparison(folder, SIX[:2], seeds=(0, 1), clients=5, arrivals=60, evaluations=4)


def lone_run_in_real_time(folder: Path) -> Path:
    directory = write_run(folder, SIX[0], seed=0, clients=5, arrivals=60, evaluations=4)
    change(directory / "config.json", scenario={"clock": "wall", "fleet": "ray"}, ended="ACE was stopped")
    events = pd.read_parquet(directory / "events.parquet").assign(uplink=1, downlink=1, sent=0.0)
    events["accepted"], events["reason"] = events.index > 0, "ACE"
    events.to_parquet(directory / "events.parquet")
    change(directory / "summary.json", refused={"ACE": 1}, refused_by_client={"0": {"ACE": 1}})
    return directory


def diagnosed(folder: Path) -> Path:
    return diagnose(methods=(ACE(), ASGD()), out=folder, quick=True)


def searched(folder: Path) -> Path:
    tune(QUADRATIC, ACE(), stop=Stop(arrivals=40), budget=2.0, workers=1, out=folder)
    return folder


def swept(folder: Path) -> Path:
    grid = {"method": ["ACE", "ASGD"], "lr": [0.02, 0.05], "task": {**QUADRATIC, "heterogeneity": [0.0, 1.0]}}
    sweep(Grid.of({**grid, "evaluations": 2, "stop": {"arrivals": 20}}), folder, workers=1)
    return folder


def ranked(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(Path(report.__file__).parent / "leaderboard.json", folder)
    return folder


KINDS = (compared, lone_run_in_real_time, diagnosed, searched, swept, ranked)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_text_from_a_record_is_shown_and_never_run(make: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = make(tmp_path / "record")
    before = read(report.build(directory, tmp_path / "before.html"))
    poison(directory)
    after = read(report.build(directory, tmp_path / "after.html"))
    assert f"ACE{EVIL}" in after.text
    assert after.elements == before.elements, "text from the record became an element"


def test_the_scripts_of_a_page_make_no_markup_of_text() -> None:
    for script in (Path(report.__file__).parent / "templates").glob("*.js"):
        code = script.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|setHTML", code), script.name


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_the_command_rebuilds_every_kind_of_page(make: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = make(tmp_path / "record")
    assert main(["report", str(directory), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert (tmp_path / "page.html").read_bytes() == report.build(directory, tmp_path / "again.html").read_bytes()


def poison(directory: Path) -> None:
    """Put a script into every text of the record's JSON files that a page shows as it is."""
    for path in directory.rglob("*.json"):
        if "cells" not in path.parts:
            path.write_text(json.dumps(_poisoned(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    if (directory / "sweep.json").exists():
        rename_cells(directory)
    for path in directory.rglob("*.parquet"):
        events = pd.read_parquet(path)
        if "reason" in events:
            events.assign(reason=EVIL).to_parquet(path)
    for path in directory.glob("*.csv"):
        path.write_text(path.read_text().replace("ACE", f"ACE{EVIL}").replace("ASGD", f"ASGD{EVIL}"))


# Words that decide what is drawn, or where it is found, and are never shown.
STRUCTURE = {"clock", "runs", "objective", "format", "quick", "parts", "law", "finals", "ranges"}


def _poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _poisoned(own, name) for name, own in value.items()}
    if isinstance(value, list) and key not in STRUCTURE:
        return [_poisoned(own, key) for own in value]
    keep = key in STRUCTURE or (key in ("task", "scenario") and isinstance(value, str))  # a board's keys
    return f"{value}{EVIL}" if isinstance(value, str) and not keep else value


def rename_cells(directory: Path) -> None:
    """A sweep finds its cells by their settings: those of the poisoned ones get the names they would have."""
    for note in (directory / "cells").glob("*/config.json"):
        config = json.loads(note.read_text())
        grid = json.loads((directory / "sweep.json").read_text())
        varied = {
            "method": f"{config['method']}{EVIL}",
            "lr": config["lr"],
            "task.heterogeneity": config["task"]["heterogeneity"],
        }
        note.parent.rename(directory / "cells" / settings_name({**grid["fixed"], **varied}))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


class Read(HTMLParser):
    """A page's elements and its visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []
        self.text = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [name for name, _ in attributes]))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def read(page: Path) -> Read:
    found = Read()
    found.feed(page.read_text(encoding="utf-8"))
    return found
