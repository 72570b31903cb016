"""Searches and comparisons by any metric, in either direction, and comparisons with a target."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.studies.test_compare import SMALL, TASK, content_of, small
from torch import nn

from acefl import ASGD, InvalidInput, Stop, load, report, tune
from acefl.report import recorded, tables
from acefl.report.metrics import TIME_TO_TARGET
from acefl.studies import sweep as sweeping
from acefl.studies.objective import Objective
from acefl.tasks import Metric, TorchTask
from acefl.tasks.base import Task


def closeness(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return -float((outputs - targets).square().mean())


BOTH_WAYS = {"closeness": closeness, "far": Metric(lambda o, t: -closeness(o, t), smaller_is_better=True)}


def regression(seed: int, metrics: Mapping[str, Any] = BOTH_WAYS) -> Task:
    """Closeness is larger where the loss is smaller, so that a search by either finds the same."""
    draw = torch.Generator().manual_seed(seed)
    data = [(x := torch.randn(9, 3, generator=draw), x.sum(1, keepdim=True)) for _ in range(4)]
    torch.manual_seed(0)
    return TorchTask(nn.Linear(3, 1), nn.MSELoss(), data, batch=3, metrics=metrics)


def tried(directory: Path) -> list[list[tuple[float, float]]]:
    return [[(trial["lr"], trial["score"]) for trial in one["tuning"]] for one in content_of(directory)["methods"]]


def test_a_search_by_a_metric_goes_its_way(tmp_path: Path) -> None:
    found = {by: small(tmp_path / by, regression, seeds=(0,), by=by) for by in ("client_loss", "closeness", "far")}
    usual = small(tmp_path / "usual", regression, seeds=(0,))
    assert tried(found["client_loss"]) == tried(usual)
    for by, sign in (("closeness", -1.0), ("far", 1.0)):
        content = content_of(found[by])
        assert (content["objective"], content["by"]) == (by, by)
        for own, other in zip(content["methods"], content_of(usual)["methods"], strict=True):
            assert own["lr"] == other["lr"]
        for own, other in zip(tried(found[by]), tried(usual), strict=True):
            assert [lr for lr, _ in own] == [lr for lr, _ in other]
            known = [(score, loss) for (_, score), (_, loss) in zip(own, other, strict=True) if loss is not None]
            assert [score for score, _ in known] == pytest.approx([sign * loss for _, loss in known], rel=1e-5)
    table = report.summary_table(found["closeness"])
    assert list(table["closeness"]) == sorted(table["closeness"], reverse=True)
    assert list(tables.readable(table).columns)[1:3] == ["client-average loss", "closeness"]
    far = report.summary_table(found["far"])
    assert list(far["far"]) == sorted(far["far"])
    page = (found["closeness"] / "report.html").read_text()
    assert "The one with the highest closeness is ringed" in page
    assert "by closeness" in page


def undefined(seed: int) -> Task:
    """A metric that is never a number, such as an AUC where every client has one class."""
    return regression(seed, {"auc": lambda outputs, targets: math.nan})


def test_a_search_by_what_is_never_a_number_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = "no trial ended with a finite auc, so its tuned settings mean nothing"
    small(tmp_path / "compared", undefined, seeds=(0,), by="auc", methods=[ASGD()])
    assert [record.message for record in caplog.records] == [f"ASGD: {said}"]
    caplog.clear()
    settings: dict[str, Any] = {"scenario": SMALL["scenario"], "stop": SMALL["stop"], "budget": 4.0, "workers": 1}
    tune(undefined, ASGD(), by="auc", **settings)
    assert [record.message for record in caplog.records] == [f"ASGD: {said}"]
    caplog.clear()
    tune(regression, ASGD(), by="closeness", **settings)
    assert not caplog.records


def test_tune_goes_by_a_metric_either_way(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scenario": SMALL["scenario"], "stop": SMALL["stop"], "budget": 4.0, "workers": 1}
    by_loss = tune(regression, ASGD(), **settings)
    by_metric = tune(regression, ASGD(), by="closeness", out=tmp_path / "search", **settings)
    assert (by_metric.lr, by_metric.objective, by_metric.larger) == (by_loss.lr, "closeness", True)
    assert by_metric.best.score == pytest.approx(-by_loss.best.score, rel=1e-5)
    again = tune(regression, ASGD(), by="closeness", out=tmp_path / "search", **settings)
    assert again == by_metric, "read from its log"
    record = json.loads((tmp_path / "search" / "tuning.json").read_text())
    assert (record["objective"], record["larger"]) == ("closeness", True)
    with pytest.raises(InvalidInput, match="holds the search of other settings"):
        tune(regression, ASGD(), by="far", out=tmp_path / "search", **settings)


def test_what_diverged_is_worst_either_way() -> None:
    assert Objective("loss").cost(Objective("loss").worst) == math.inf
    larger = Objective("f1", larger=True)
    assert (larger.worst, larger.cost(larger.worst), larger.cost(0.5)) == (-math.inf, math.inf, -0.5)


@pytest.mark.parametrize("settings", [{"by": "f1"}, {"stop": Stop(arrivals=40, target=("f1", 0.9))}])
def test_an_unknown_metric_is_named_before_any_work(tmp_path: Path, settings: dict[str, Any]) -> None:
    said = "no metric 'f1' here; allowed: .*client_loss.* gap, grad_norm"
    with pytest.raises(InvalidInput, match=said):
        small(tmp_path / "compare", **settings)
    with pytest.raises(InvalidInput, match=said):
        tune(TASK, out=tmp_path / "tune", **settings)
    stop = "f1=0.9" if "stop" in settings else None
    content = {"lr": 0.1, "task": TASK, "stop": {"arrivals": 9, **({"target": stop} if stop else {})}}
    with pytest.raises(InvalidInput, match=said):
        sweeping.sweep(sweeping.Grid.of(content), tmp_path / "sweep", by=settings.get("by"), workers=1)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.fixture(scope="module")
def aimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stop = Stop(arrivals=40, target=("gap", 1.0))
    return small(tmp_path_factory.mktemp("aimed") / "one", stop=stop, evaluations=40)


def test_a_comparison_with_a_target_says_when_each_method_reached_it(aimed: Path, tmp_path: Path) -> None:
    whole = small(tmp_path / "whole", evaluations=40)
    for own, other in zip(content_of(aimed)["methods"], content_of(whole)["methods"], strict=True):
        assert own["tuning"] == other["tuning"], "trials go to the end, where their scores compare"
    comparison, table = recorded.load(aimed), report.summary_table(aimed)
    for method in comparison.methods:
        runs = [load(run.directory) for run in method.runs]
        times = [reached.time for run in runs if (reached := run.time_to("gap", 1.0)) is not None]
        row = table[table["method"] == method.label].iloc[0]
        assert (row["reached"], row["seeds"]) == (len(times), 2)
        assert row[TIME_TO_TARGET] == pytest.approx(sum(times) / len(times))
        assert all("was reached" in run.config["ended"] for run in runs)
        [full] = [other for other in recorded.load(whole).methods if other.label == method.label]
        assert [load(run.directory).time_to("gap", 1.0) for run in full.runs] == [
            run.time_to("gap", 1.0) for run in runs
        ]
    assert list(table[TIME_TO_TARGET]) == sorted(table[TIME_TO_TARGET])
    assert not table["gap_leads"].any(), "runs ended at different times"
    assert "time to gap ≤ 1" in tables.readable(table).columns
    page = (aimed / "report.html").read_text()
    assert "Mean time to gap ≤ 1" in page
    assert "4 of 4 runs at their target" in page


def test_seeds_that_never_got_there_are_counted_and_put_last(aimed: Path) -> None:
    table = report.summary_table(aimed)
    changed = table.copy()
    changed.attrs = table.attrs
    changed["reached"] = [1, 0]
    changed.loc[1, TIME_TO_TARGET] = math.nan
    heading = tables.readable(changed)["time to gap ≤ 1"]
    assert heading[0].endswith("(1 of 2 seeds)")
    assert heading[1] == "not reached"
    comparison = recorded.load(aimed)
    scores = tables.times_to(comparison, recorded.Target("gap", -1.0))
    assert all(math.isinf(score) for own in scores.values() for score in own)


def test_a_sweep_goes_by_a_metric_and_shows_the_time_to_a_target(tmp_path: Path) -> None:
    content = {
        "lr": [0.1, 0.4],
        "seed": [0, 1],
        "task": TASK,
        "evaluations": 30,
        "stop": {"arrivals": 30, "target": "gap=1.5"},
    }
    sweeping.sweep(sweeping.Grid.of(content), tmp_path / "sweep", by="grad_norm", workers=1)
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["by"] == "grad_norm"
    found = sweeping.results(tmp_path / "sweep")
    assert isinstance(found, pd.DataFrame)
    assert TIME_TO_TARGET in found
    page = report.build(tmp_path / "sweep").read_text()
    assert "Best mean gradient norm" in page
    assert "time to the target" in page
