"""Results as objects: what a study returns is what its files say, whoever reads them, and a path still."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import acefl
from acefl import ACE, ASGD, Comparison, FedBuff, InvalidInput, Run, Scenario, Stop, report
from acefl.core.files import CHECKPOINT, UNFINISHED
from acefl.runs import record
from acefl.studies.compare import compare
from acefl.studies.results import Diagnosis, Leaderboard, Search, Sweep
from acefl.studies.sweep import Grid, sweep
from acefl.studies.tune import tune

TASK = {"name": "quadratic", "clients": 6, "dim": 3, "noise": 0.1}
SMALL: dict[str, Any] = {"scenario": Scenario(spread=5.0), "stop": Stop(arrivals=40), "workers": 1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("results") / "compare"
    return compare(TASK, [ACE(), FedBuff(buffer=3)], out=out, lr=0.05, evaluations=3, seeds=(4, 7), **SMALL)


def test_a_comparison_is_what_its_files_say(compared: Comparison) -> None:
    loaded = acefl.load(compared.directory)
    assert isinstance(loaded, Comparison)
    pd.testing.assert_frame_equal(loaded.summary, report.summary_table(compared.directory))
    assert set(compared.runs) == {"ACE", "FedBuff(buffer=3)"}
    history = compared.history.set_index(["method", "seed"])
    for label, runs in loaded.runs.items():
        assert [run.config["seed"] for run in runs] == [4, 7]
        for run in runs:
            rows = history.loc[(label, run.config["seed"])]
            kept = rows[list(run.history.columns)].reset_index(drop=True)
            pd.testing.assert_frame_equal(kept, run.history, check_dtype=False)
    means = {label: sum(run.final["gap"] for run in runs) for label, runs in compared.runs.items()}
    assert compared.best == min(means, key=means.__getitem__)


def test_it_may_stand_where_its_path_may(compared: Comparison, tmp_path: Path) -> None:
    assert os.fspath(compared) == str(compared) == str(compared.directory)
    assert (compared / "compare.json").exists()
    assert Path(compared) == compared.directory
    page = (compared / "report.html").read_bytes()
    assert compared.report() == compared / "report.html"
    assert (compared / "report.html").read_bytes() == page
    assert compared.report(tmp_path / "elsewhere.html").exists()


def test_every_kind_of_record_is_loaded_as_what_it_is(tmp_path: Path) -> None:
    run = acefl.simulate(acefl.tasks.build({**TASK, "seed": 0}), ASGD(), lr=0.1, stop=Stop(arrivals=20))
    assert isinstance(acefl.load(run.save(tmp_path / "run")), Run)
    grid = Grid.of({"lr": [0.05, 0.1], "task": TASK, "stop": {"arrivals": 20}})
    swept = sweep(grid, tmp_path / "sweep", workers=1)
    loaded = acefl.load(tmp_path / "sweep")
    assert isinstance(loaded, Sweep)
    pd.testing.assert_frame_equal(loaded.summary, swept.summary)
    assert loaded.done == 2
    assert loaded.run(loaded.summary["cell"][0]).final["gap"] == loaded.summary["gap"][0]
    assert loaded.report().exists()
    found = tune(TASK, ASGD(), budget=2.0, out=tmp_path / "tune", **SMALL)
    search = acefl.load(tmp_path / "tune")
    assert isinstance(search, Search)
    assert (search.lr, search.method) == (found.lr, "ASGD")
    assert list(search.summary["score"]) == [trial.score for trial in found.trials]
    for name, kind in (("leaderboard.json", Leaderboard), ("diagnose.json", Diagnosis)):
        (tmp_path / kind.__name__).mkdir()
        (tmp_path / kind.__name__ / name).write_text("{}")
        assert isinstance(acefl.load(tmp_path / kind.__name__), kind)


@pytest.mark.parametrize("begun", [UNFINISHED, CHECKPOINT])
def test_what_is_interrupted_or_nothing_is_said_in_a_line(begun: str, tmp_path: Path) -> None:
    (tmp_path / begun).mkdir()
    with pytest.raises(InvalidInput, match="holds something interrupted, and nothing finished"):
        acefl.load(tmp_path)
    for read in (report.build, record.load):
        with pytest.raises(InvalidInput, match="holds something interrupted, and nothing finished"):
            read(tmp_path)
    with pytest.raises(InvalidInput, match="missing"):
        acefl.load(tmp_path / "nowhere")


def test_notebooks_show_tables_in_which_nothing_is_markup(compared: Comparison) -> None:
    assert "FedBuff(buffer=3)" in compared._repr_html_()
    assert repr(compared).startswith("Comparison of ACE, FedBuff(buffer=3) on seeds [4, 7] in ")
    run = compared.runs["ACE"][0]
    assert f"{run.final['gap']:.6g}" in run._repr_html_()
    run.config["label"] = "<script>alert(1)</script>"
    task = acefl.tasks.TorchTask(
        *_linear(), description={"name": "<b>mine</b>", "path": "<img src=x onerror=alert(1)>" + "x" * 10_000}
    )
    for shown in (run._repr_html_(), task._repr_html_()):
        assert "<script" not in shown
        assert "<img" not in shown
        assert "<b>" not in shown
        assert len(shown) < 5_000
    assert repr(task) == "<task <b>mine</b> with 1 clients>"
    assert "clients" in acefl.tasks.quadratic(clients=3, dim=2)._repr_html_()


def _linear() -> tuple[Any, ...]:
    import torch

    return torch.nn.Linear(2, 1), torch.nn.MSELoss(), [(torch.zeros(3, 2), torch.zeros(3, 1))]
