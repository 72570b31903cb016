"""`acefl diagnose` records what it measured, its page says what the records say, and its fits are fits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.ace.theory import terms
from hypothesis import given
from hypothesis import strategies as st
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait

from acefl import ACE, ASGD, FedBuff, InvalidInput, Stop, report, tasks
from acefl.cli import main
from acefl.report import diagnosis
from acefl.rules import label
from acefl.runs.record import load
from acefl.studies import amplification
from acefl.studies.diagnose import diagnose, measure

METHODS = (ACE(), FedBuff(buffer=4), ASGD())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return diagnose(methods=METHODS, out=tmp_path_factory.mktemp("diagnosis") / "all", quick=True)


def test_the_table_has_what_the_paper_says_in_words(folder: Path) -> None:
    """Noise is not reduced by ASGD, by m in FedBuff and by n in ACE; ACE alone has no bias."""
    table = diagnosis.impact(diagnosis.load(folder)).set_index("method")
    assert table["averages"].to_dict() == pytest.approx({"ACE": 10, "FedBuff(buffer=4)": 4, "ASGD": 1})
    assert table.loc["ACE", "bias"] < 1e-12 * table.loc["ACE", "mse"]
    assert table.loc["ASGD", "bias"] > table.loc["FedBuff(buffer=4)", "bias"] > 0.01
    text = diagnosis.readable(table.reset_index()).set_index("method")
    assert text["bias"].to_list()[0] == "none"
    assert text["is σ² /"].to_list() == ["10", "4", "1"]


def test_who_counts_and_who_is_served_is_in_a_table(folder: Path) -> None:
    found = diagnosis.load(folder)
    table = diagnosis.participation(found).set_index("method")
    assert table.loc["ACE", "influence_clients"] == pytest.approx(10)
    assert table.loc["ACE", "influence_speed"] == 0.0
    assert table.loc["ASGD", "influence_gini"] > 0.2
    for method in table.index:
        runs = [run for one in found.methods.methods if one.label == method for run in one.runs]  # type: ignore[union-attr]
        [run] = [load(run.directory) for run in runs]
        staleness = run.events["version"] - run.events["trained_on"]
        assert table.loc[method, "staleness_median"] == staleness.quantile(0.5, interpolation="lower")
        assert table.loc[method, "staleness_max"] == staleness.max()
        assert table.loc[method, "heldout_worst_loss"] == max(row["loss"] for row in run.clients)
    text = diagnosis.readable(table.reset_index())
    assert set(text["clients that count"]) > {"10"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "correlation with speed" in page
    assert "loss of the worst served client: ACE" in page


def test_a_users_own_task_whose_gradients_must_be_sampled_gets_intervals(tmp_path: Path) -> None:
    """Dropout has no exact gradient: every term is an estimate between its ends, and ACE's bias is still none."""

    def mine(seed: int) -> tasks.TorchTask:
        draw = torch.Generator().manual_seed(seed)
        data = [torch.randn(12, 3, generator=draw) + client for client in range(5)]
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 2))
        return tasks.TorchTask(model, torch.nn.CrossEntropyLoss(), [(x, (x[:, 0] > 1).long()) for x in data], batch=4)

    out = diagnose(
        mine, (ACE(), ASGD()), out=tmp_path / "mine", stop=Stop(arrivals=60), every=10, lr=0.05, parts=("terms",)
    )
    found = diagnosis.load(out)
    assert found.methods is not None
    for run in found.methods.runs:
        rows = run.metrics.dropna(subset="noise")
        assert len(rows) >= 3
        for name in ("noise", "bias", "delay", "mse"):
            assert (rows[f"{name}_low"] <= rows[name]).all()
            assert (rows[name] <= rows[f"{name}_high"]).all()
    assert diagnosis.readable(diagnosis.impact(found))["bias"].to_list()[0] == "none"
    assert any("ACE has none" in sentence for sentence in diagnosis.sentences(found))


def test_the_table_is_made_of_the_second_half_of_the_recorded_runs(folder: Path) -> None:
    table = diagnosis.impact(diagnosis.load(folder)).set_index("method")
    for rule in METHODS:
        [run] = [path for path in (folder / "methods/runs").iterdir() if path.name.startswith(type(rule).__name__)]
        history = load(run).history
        late = history[history["arrival"] >= 100].dropna(subset="noise")
        for name in ("noise", "bias", "delay", "mse"):
            assert table.loc[label(rule), name] == pytest.approx(late[name].mean())


def test_every_cell_of_the_grid_and_every_point_of_the_rate_is_recorded(folder: Path) -> None:
    cells = pd.read_csv(folder / "amplification.csv")
    assert len(cells) == len(METHODS) * 4
    assert set(zip(cells["spread"], cells["heterogeneity"], strict=True)) == {(1, 0), (1, 1), (10, 0), (10, 1)}
    assert (cells[cells["method"] == "ACE"]["bias"] < 1e-9).all()
    assert (cells[cells["method"] == "ASGD"]["bias"] > 1e-3).all()
    points = pd.read_csv(folder / "rate.csv")
    assert (points[["whole", "second_half"]] > 0).all().all()
    assert points["lr"].to_numpy() == pytest.approx(0.1 * np.sqrt(points["n"] / points["T"]), rel=1e-5)
    slopes = diagnosis.slopes(diagnosis.load(folder))
    whole = points[(points["method"] == "ACE") & (points["against"] == "T")]
    found = slopes[(slopes["method"] == "ACE") & (slopes["against"] == "T") & (slopes["over"] == "whole")].iloc[0]
    assert found["slope"] == pytest.approx(np.polyfit(np.log(whole["T"]), np.log(whole["whole"]), 1)[0])


def test_the_page_is_made_again_from_the_files_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    again = report.build(folder, tmp_path / "again.html")
    assert again.read_bytes() == (folder / "report.html").read_bytes()


def test_the_report_command_makes_it_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "again.html"
    assert main(["report", str(folder), "--out", str(again), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(again)
    assert again.read_bytes() == (folder / "report.html").read_bytes()


def test_the_page_draws_every_figure(folder: Path, browser: Chrome) -> None:
    browser.get((folder / "report.html").as_uri())
    drawn = WebDriverWait(browser, 120).until(lambda page: page.execute_script("return document.body.dataset.drawn"))
    sections = [section.get_attribute("id") for section in browser.find_elements("css selector", "section.figure")]
    figures = {"stacked": 3, "terms": 4, "cosines": 4, "influence": 1, "staleness": 2, "fairness": 1}
    figures |= {"amplification": 6, "rate": 2}
    assert sections == list(figures)
    assert int(drawn) == sum(figures.values()) == len(browser.find_elements("css selector", ".plot > svg"))
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_command_prints_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "terms"
    arguments = ["--quick", "--part", "terms", "--method", "ACE", "--method", "ASGD", "--arrivals", "60", "--json"]
    assert main(["diagnose", *arguments, "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in result["impact"]] == ["ACE", "ASGD"]
    assert result["parts"] == ["terms"]
    assert result["slopes"] == []
    assert any("ACE has none" in sentence for sentence in result["findings"])
    assert not (out / "rate.csv").exists()
    assert main(["diagnose", *arguments, "--out", str(out)]) == 0  # an earlier record is replaced


def test_the_command_prints_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--part", "amplification", "--method", "ACE", "--method", "ASGD"]
    assert main(["diagnose", *arguments, "--out", str(tmp_path / "grid")]) == 0
    printed = capsys.readouterr().out
    assert "delay × het." in printed
    assert "ASGD" in printed
    assert "report.html" in printed


def test_every_part_is_measured_on_every_seed_and_factors_are_of_their_means(tmp_path: Path) -> None:
    out = diagnose(methods=[ASGD()], out=tmp_path / "x", parts=["amplification", "rate"], quick=True, seeds=(3, 4, 5))
    found = diagnosis.load(out)
    assert found.amplification is not None
    assert found.rate is not None
    for table in (found.amplification, found.rate):
        assert set(table["seed"]) == {3, 4, 5}
    slow = found.amplification[found.amplification["spread"] == found.amplification["spread"].max()]
    uneven, even = (slow[slow["heterogeneity"] == h]["delay"].mean() for h in (1.0, 0.0))
    assert float(diagnosis.impact(found)["amplified"].iloc[0]) == pytest.approx(uneven / even)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "all"], "part is 'all'; allowed: terms, amplification, rate"),
        (["--method", "SGD"], "unknown method 'SGD'"),
        (["--lr", "0"], "lr is 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "nothing"
    assert main(["diagnose", "--quick", *arguments, "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()[-1:]
    assert message in line
    assert not out.exists()


def test_a_directory_without_a_diagnosis_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="diagnose.json: missing"):
        diagnosis.load(tmp_path)
    with pytest.raises(InvalidInput, match="parts is empty"):
        diagnose(out=tmp_path / "x", parts=())


def test_the_recorded_diagnosis_is_what_is_written_beside_it() -> None:
    assert terms.page() == (terms.HERE / "README.md").read_text(encoding="utf-8")


def test_a_seed_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"seeds are \[1, 1\]; allowed: each once"):
        diagnose(methods=METHODS, out=tmp_path / "out", parts=("amplification",), seeds=(1, 1), quick=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_measure_the_same(tmp_path: Path) -> None:
    def jobs() -> list[object]:
        return [(amplification.measure, what, job) for what, job in amplification.QUICK.jobs(ACE(), 0)]

    pd.testing.assert_frame_equal(measure(jobs(), 1), measure(jobs(), 2))  # type: ignore[arg-type]


def test_a_method_that_steps_once_per_buffer_moves_at_the_same_pace() -> None:
    grid = amplification.Grid()
    [(_, single), *_], [(_, buffered), *_] = grid.jobs(ASGD(), 0), grid.jobs(FedBuff(buffer=10), 0)
    assert buffered.lr == pytest.approx(10 * single.lr)


@given(st.floats(-2, 2), st.floats(0.1, 10), st.lists(st.floats(1, 1e4), min_size=3, max_size=8, unique=True))
def test_the_exponent_of_a_power_law_is_found(exponent: float, factor: float, x: list[float]) -> None:
    if max(x) / min(x) < 1.01:
        return
    slope = diagnosis.fit(x, [factor * value**exponent for value in x])
    assert slope.value == pytest.approx(exponent, abs=1e-9)
    assert slope.low == pytest.approx(slope.high, abs=1e-9)


def test_intervals_of_slopes_cover_the_true_one_as_often_as_they_say() -> None:
    """400 fits to 12 points with 20 % noise: coverage is 95 % +- 1.1 %; below 90 % with a chance of 1e-5."""
    draw = np.random.default_rng(0)
    x = np.repeat([500.0, 1_000.0, 2_000.0, 4_000.0], 3)
    fits = [diagnosis.fit(x.tolist(), (x**-0.5 * np.exp(draw.normal(0, 0.2, 12))).tolist()) for _ in range(400)]
    assert np.mean([fit.low <= -0.5 <= fit.high for fit in fits]) > 0.90
    assert math.isclose(np.mean([fit.value for fit in fits]), -0.5, abs_tol=0.03)


def test_a_slope_needs_points() -> None:
    with pytest.raises(InvalidInput, match="three points at two places"):
        diagnosis.fit([1, 2], [1, 2])
