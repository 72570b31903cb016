"""Laws of a sweep: the same cells whatever runs them, killed or not, and one failure stops nothing."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import acefl.studies.sweep as sweeping
from acefl import report
from acefl.core.errors import InvalidInput
from acefl.report import sweeps
from acefl.report.metrics import CLIENT_LOSS, GAP
from acefl.studies.sweep import Grid, parse_axes, parse_axis, results, sweep

SMALL: dict[str, Any] = {
    "method": ["ACE", "ASGD"],
    "lr": [0.02, 0.05],
    "evaluations": 3,
    "task": {"name": "quadratic", "clients": 5, "dim": 3, "heterogeneity": [0.0, 1.0]},
    "scenario": {"spread": 3.0},
    "stop": {"arrivals": 40},
}


def numbers(directory: Path) -> pd.DataFrame:
    return results(directory).drop(columns="wall_seconds").sort_values("cell").reset_index(drop=True)


def test_a_grid_is_the_product_of_its_lists() -> None:
    cells = Grid.of(SMALL).cells()
    assert len(cells) == 8
    assert len({cell.name for cell in cells}) == 8
    assert {cell.settings["task.heterogeneity"] for cell in cells} == {0.0, 1.0}


def test_schedules_and_optimizers_are_settings_like_others(tmp_path: Path) -> None:
    content = {**SMALL, "method": "ACE", "lr": 0.05, "task": {**SMALL["task"], "heterogeneity": 1.0}}
    grid = Grid.of({**content, "schedule": ["Constant", "WarmUp(share=0.5)"], "optimizer": ["SGD", "Momentum"]})
    sweep(grid, tmp_path, workers=1)
    finals = results(tmp_path)
    assert set(finals["schedule"]) == {"Constant", "WarmUp(share=0.5)"}
    assert len(set(finals["gap"])) == len(grid.cells()) == len(finals)


def test_a_cell_is_named_by_its_settings_alone(tmp_path: Path) -> None:
    reordered = dict(reversed(SMALL.items()))
    assert {c.name for c in Grid.of(SMALL).cells()} == {c.name for c in Grid.of(reordered).cells()}


def test_what_is_there_is_not_made_again_and_what_is_missing_is(tmp_path: Path) -> None:
    whole = sweep(Grid.of(SMALL), tmp_path / "whole", workers=1)
    assert (whole.done, whole.failed) == (8, {})
    before = numbers(whole.directory)
    victim = whole.directory / "cells" / before["cell"][3]
    kept = whole.directory / "cells" / before["cell"][4] / "summary.json"
    made = kept.stat().st_mtime_ns
    for file in victim.iterdir():
        file.unlink()
    victim.rmdir()
    assert sweep(Grid.of(SMALL), whole.directory, workers=1).done == 8
    pd.testing.assert_frame_equal(numbers(whole.directory), before)
    assert kept.stat().st_mtime_ns == made


def test_a_failed_cell_is_written_down_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,duration\n0,1.0\n")  # nothing for clients 1 to 4: runs with them fail
    scenario = {"spread": 1.0, "trace": str(trace)}
    grid = Grid.of({**SMALL, "lr": 0.05, "task": {**SMALL["task"], "clients": [1, 5]}, "scenario": scenario})
    outcome = sweep(grid, tmp_path / "out", workers=1)
    assert (outcome.done, len(outcome.failed)) == (4, 4)
    assert all("no duration for client 1" in problem for problem in outcome.failed.values())
    note = tmp_path / "out" / "cells" / f"{next(iter(outcome.failed))}.failed.json"
    assert json.loads(note.read_text())["settings"]["task.clients"] == 5
    trace.write_text("client,duration\n" + "".join(f"{client},1.0\n" for client in (0, 1, 2, 3, 4)))
    again = sweep(grid, tmp_path / "out", workers=1)
    assert (again.done, again.failed) == (8, {})
    assert not note.exists()


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    sweep(Grid.of(SMALL), tmp_path / "never-killed", workers=1)
    (tmp_path / "grid.json").write_text(json.dumps(SMALL))
    script = (
        "import json, sys; from acefl.studies.sweep import Grid, sweep\n"
        "sweep(Grid.of(json.load(open(sys.argv[1]))), sys.argv[2], workers=1)"
    )
    target = tmp_path / "killed"
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "grid.json"), str(target)])
    deadline = time.monotonic() + 60
    while not list(target.glob("cells/[!.]*/summary.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    landed = len(results(target))
    assert landed >= 1
    assert sweep(Grid.of(SMALL), target, workers=1).done == 8
    pd.testing.assert_frame_equal(numbers(target), numbers(tmp_path / "never-killed"))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_ray_and_this_process_give_the_same_cells(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the ray extra is not installed")
    grid = Grid.of({**SMALL, "lr": 0.05, "method": "ACE"})
    sweep(grid, tmp_path / "here", workers=1)
    assert sweep(grid, tmp_path / "ray", workers=1, ray="local").done == 2
    pd.testing.assert_frame_equal(numbers(tmp_path / "ray"), numbers(tmp_path / "here"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"lr": 0.1, "methods": "ACE"}, "'methods'; allowed: method"),
        ({"method": "ACE"}, "no lr"),
        ({"lr": []}, "empty list"),
        ({"lr": 0.1, "method": "ACF"}, "unknown method 'ACF'"),
        ({"lr": 0.1, "scenario": {"sprad": 2}}, "no setting 'sprad'"),
        ({"lr": "fast"}, "lr is 'fast'"),
        ({"lr": 0.1, "schedule": "Cosin"}, "unknown schedule 'Cosin'"),
        ({"lr": -1.0}, "lr is -1"),
        ({"lr": 0.1, "seed": [0, 1, 0]}, "seed has 0 more than once; allowed: each value once"),
        ({"lr": 0.1, "evaluations": 0}, "evaluations is 0; allowed: at least 1"),
        ({"lr": 0.1, "task": {"name": "digit"}}, "unknown task 'digit'; allowed: .*digits"),
        ({"lr": 0.1, "task": {"name": "digits", "size": 3}}, "task digits has no setting 'size'; allowed: clients, "),
        ({"lr": 0.1, "task": {"name": "quadratic", "clients": 3}, "scenario": {"concurrency": 4}}, "at most"),
    ],
)
def test_a_wrong_grid_is_refused_before_any_work(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint.replace("(", r"\(")):
        sweep(Grid.of(content), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_with_another_grid_or_other_files_is_refused(tmp_path: Path) -> None:
    grid = Grid.of({**SMALL, "method": "ACE", "lr": 0.05, "task": {**SMALL["task"], "heterogeneity": 1.0}})
    sweep(grid, tmp_path / "mine", workers=1)
    with pytest.raises(InvalidInput, match="holds a sweep with other axes"):
        sweep(Grid.of(SMALL), tmp_path / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        sweep(grid, tmp_path / "other")


def test_flags_read_as_toml_would() -> None:
    assert parse_axis("task.alpha=0.1,1") == ("task.alpha", [0.1, 1])
    assert parse_axis("method=ACE,ACED(tau=3, warmup='seen')")[1] == ["ACE", "ACED(tau=3, warmup='seen')"]
    nested = "Clipped(threshold=2.0, method='ACED(tau=3, warmup=\"seen\")')"
    assert parse_axis(f"method={nested},ASGD")[1] == [nested, "ASGD"]
    assert parse_axis("task.hidden=[8, 4],[16]")[1] == [[8, 4], [16]]
    with pytest.raises(InvalidInput, match="KEY=V,V"):
        parse_axis("lr")
    with pytest.raises(InvalidInput, match="--vary lr is given twice; allowed: once, as in lr=V,V"):
        parse_axes(["lr=0.1", "seed=0", "lr=0.2"])


def test_a_broken_grid_file_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("lr = [0.1")
    with pytest.raises(InvalidInput, match="cannot read grid"):
        sweeping.read_settings(tmp_path / "grid.toml")


def test_the_page_shows_a_map_and_a_curve_for_what_varies(tmp_path: Path) -> None:
    sweep(Grid.of(SMALL), tmp_path / "s", workers=1)
    html = report.build(tmp_path / "s").read_text()
    assert "map-client-loss-lr-task-heterogeneity" in html
    assert "along-lr" in html
    assert html == report.build(tmp_path / "s").read_text()


def test_the_page_compares_nothing_across_scenarios_and_averages_no_diverged_seed_away() -> None:
    """ASGD is steadily worse under either spread; the easier spread is no merit of a method."""
    chance = np.random.default_rng(0)
    cells = [
        {"method": method, "scenario.spread": spread, "seed": seed, "client_loss": loss + float(chance.normal(0, 0.01))}
        | {"diverged": False}
        for method, own in (("ACE", 0.0), ("ASGD", 1.0))
        for spread, loss in ((1.0, own), (30.0, own + 5.0))
        for seed in range(4)
    ]
    table, varied = pd.DataFrame(cells), ["method", "scenario.spread"]
    assert sweeps.leading(table, varied, CLIENT_LOSS) == {("ACE", 1.0), ("ACE", 30.0)}
    assert sweeps._sentences(table, varied, CLIENT_LOSS)[0].startswith("Compare within the same spread")
    assert "Compared within the same spread." in sweeps._why_bold(table, varied, [CLIENT_LOSS])
    [lone] = [part for _, part in table.groupby("scenario.spread") if part["scenario.spread"].iloc[0] == 1.0]
    assert sweeps._sentences(lone, ["method"], CLIENT_LOSS)[0].startswith("Best mean client-average loss: ")
    table.loc[0, "diverged"] = True
    assert math.isnan(sweeps.grouped(table, varied, CLIENT_LOSS)[0]["mean"])
    assert sweeps.leading(table, varied, CLIENT_LOSS) == {("ACE", 30.0)}


def test_seeds_that_diverged_are_never_averaged_away(tmp_path: Path) -> None:
    content = {**SMALL, "method": "ASGD", "lr": [0.05, 1e9], "seed": [0, 1], "stop": {"arrivals": 200}}
    sweep(Grid.of(content), tmp_path / "s", workers=1)
    table = results(tmp_path / "s")
    lost = table.index[(table["lr"] == 0.05) & (table["seed"] == 1)]
    table.loc[lost, ["diverged", "gap"]] = [True, float("nan")]
    rows = sweeps.grouped(table, ["lr"], GAP)
    assert [row["diverged"] for row in rows] == [2, 4], "one of two seeds at each of two heterogeneities, and all"
    assert all(pd.isna(row["mean"]) for row in rows)
    html = report.build(tmp_path / "s").read_text()
    assert "(2 of 2 diverged)" in html
    assert "4 of 8 runs diverged: nothing is drawn where one of them would count." in html


def test_a_metric_that_some_cells_do_not_have_is_averaged_over_those_that_have_it() -> None:
    table = pd.DataFrame({"a": [1, 1], "gap": [2.0, float("nan")], "diverged": [False, False]})
    assert sweeps.grouped(table, ["a"], GAP)[0]["mean"] == 2.0


def test_the_grid_in_the_docs_runs_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "grid.toml").write_text(block)
    grid = Grid.read(tmp_path / "grid.toml")
    assert len(grid.cells()) == 16
    assert f"`{'`, `'.join(('optimizer', 'schedule'))}`" in page
    assert all(f"`{key}`" in page or f"`[{key}]`" in page for key in sweeping.KEYS)
    made = sweep(grid, tmp_path / "sweep", workers=1)
    assert (made.done, made.failed) == (16, {})
    html = made.report().read_text(encoding="utf-8")
    assert "Best mean" not in html
    assert "Compare within the same spread" in html
