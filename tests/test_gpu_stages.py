"""`experiments/ace/gpu.py`: stages plan the runs that are recorded, wherever inputs lie, and none a second time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from experiments.ace import gpu

from acefl.core.files import read_json
from acefl.paper.records import Ledger, Record
from acefl.studies.sweep import Cell

PAGES = sorted((gpu.HERE / "recorded").iterdir())
SCRIPT = "python experiments/ace/gpu.py"


def commands(page: Path) -> list[str]:
    return list(read_json(page / "reproduce.json")["commands"])


def recipe_of(page: Path) -> str:
    return str(read_json(page / "reproduce.json")["recipe"])


BY_STAGES = [page for page in PAGES if all(line.startswith(SCRIPT) for line in commands(page))]


def named(page: Path) -> list[str]:
    """The stages that the page says it was made by."""
    return [
        stage
        for line in commands(page)
        if line.startswith(SCRIPT)
        for stage in line.split("--stages ")[1].split()[0].split(",")
    ]


def records(page: Path) -> list[Record]:
    return list(Ledger(page / "results.jsonl").records.values())


def runs(page: Path) -> list[Record]:
    return [record for record in records(page) if record["kind"] == "run"]


@pytest.fixture
def inputs(tmp_path: Path) -> gpu.Inputs:
    """Everything that a stage may need, though empty, in a place of its own."""
    there = gpu.Inputs(tmp_path / "data", tmp_path / "encoder", tmp_path / "start.safetensors")
    for folder in ("cifar10", "cifar100", "news20", *gpu.ALL_IMAGES.values()):
        there.folder(folder).mkdir(parents=True)
    there.encoder.touch()
    there.start.touch()
    return there


def moved(record: Record) -> Record:
    """The same run, had its inputs lain elsewhere and its gradients been computed in another way."""
    settings: dict[str, Any] = {
        **record["settings"],
        "task.compute": "shared",
        "task.compile": True,
        "task.channels_last": True,
    }
    if "task.folder" in settings:
        folder = Path(settings["task.folder"]).name
        settings["task.folder"] = f"/elsewhere/{folder if folder in gpu.ALL_IMAGES.values() else 'data'}"
    if settings.get("task.model") == gpu.ENCODER:
        settings["task.model"] = "/elsewhere/encoder"
    if "task.start" in settings:
        settings["task.start"] = "/elsewhere/other.safetensors"
    return {**record, "cell": Cell(settings).name, "settings": settings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_run_is_recorded_under_one_name_wherever_its_inputs_lie(page: Path) -> None:
    for record in records(page):
        assert gpu.portable(record) == record
        if record["settings"].get("task.name") is None:
            continue  # measured, not run
        assert Cell(record["settings"]).name == record["cell"]
        assert moved(record)["cell"] != record["cell"]
        assert gpu.portable(moved(record)) == record


def planned(
    stages: Sequence[str], inputs: gpu.Inputs, page: Path, again: bool, rates: Sequence[float | None] = (None,)
) -> set[str]:
    """Names of the runs that stages plan on the device of the page's; those of tuned entries at these rates."""
    [device] = {record["settings"]["task.device"] for record in runs(page)}
    cells = [
        cell
        for entry in gpu.plan(stages, inputs, device, {}, again=again)
        for rate in (rates if entry.tuning else (None,))
        for cell in entry.cells(rate)
    ]
    return {gpu.portable({"cell": cell.name, "settings": cell.settings})["cell"] for cell in cells}


@pytest.mark.parametrize("page", BY_STAGES, ids=lambda page: page.name)
def test_the_stages_found_for_a_recorded_run_are_those_that_plan_it(page: Path, inputs: gpu.Inputs) -> None:
    rates = sorted({run["settings"]["lr"] for run in runs(page)})
    stages = [stage for stage, (recipe, _, _) in gpu.STAGES.items() if recipe == recipe_of(page)]
    plans = {stage: planned([stage], inputs, page, True, rates) for stage in stages}
    for run in runs(page):
        found = gpu._stages(recipe_of(page), [run])
        assert found == [stage for stage in stages if run["cell"] in plans[stage]]
        assert set(found) & set(named(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_stage_that_a_page_names_is_found_in_its_records(page: Path) -> None:
    found = gpu._stages(recipe_of(page), records(page))
    assert set(named(page)) <= set(found)
    assert bool(found) == bool(named(page))


@pytest.mark.parametrize("page", BY_STAGES, ids=lambda page: page.name)
def test_what_is_recorded_is_not_planned_again(page: Path, inputs: gpu.Inputs) -> None:
    recipe = recipe_of(page)
    stages = [stage for stage, (name, settings, _) in gpu.STAGES.items() if name == recipe and "form" not in settings]
    recorded = {run["cell"] for one in PAGES if recipe_of(one) == recipe for run in runs(one)}
    every, left = (planned(stages, inputs, page, again) for again in (True, False))
    assert left == every - recorded


def test_on_another_device_it_is_another_run(inputs: gpu.Inputs) -> None:
    assert gpu.plan(["main0"], inputs, "cuda", {}) == []
    assert gpu.plan(["main0"], inputs, "cpu", {}) != []


@pytest.mark.parametrize("stage", gpu.STAGES)
def test_a_stage_needs_its_data_alone_and_is_left_out_without(
    stage: str, inputs: gpu.Inputs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = gpu.plan([stage], inputs, "cpu", {}, again=True)
    needed = {
        Path(value)
        for entry in runs
        for value in (entry.settings.get(f"task.{name}", "") for name in ("folder", "model", "start"))
        if str(inputs.data.parent) in value
    }
    assert needed
    assert capsys.readouterr().out == ""
    for path in needed:
        away = path.rename(path.with_name("away"))
        assert gpu.plan([stage], inputs, "cpu", {}, again=True) == []
        assert capsys.readouterr().out == f"left out {stage}: no {path}\n"
        away.rename(path)
    for path in {inputs.encoder, inputs.start, *inputs.data.iterdir()} - needed:
        path.unlink() if path.is_file() else path.rmdir()
    assert gpu.plan([stage], inputs, "cpu", {}, again=True) == runs


def test_a_stage_goes_seed_by_seed(inputs: gpu.Inputs) -> None:
    """A stage that the clock ends then has whole seeds, which is what pages compare."""
    assert [list(run.seeds) for run in gpu.plan(["tau12"], inputs, "cpu", {})] == [[1]] * 7 + [[2]] * 7


def test_an_unknown_stage_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--stages", "main0,mian1"])
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: unknown stage 'mian1'; allowed: main0, main1, ")
    assert said.count("\n") == 1


def test_records_that_are_merged_twice_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second time also as another machine would have made them."""
    page = gpu.HERE / "recorded" / "cifar10-extended-cnn"
    for place, change in (("here", dict), ("elsewhere", moved)):
        source = tmp_path / place / recipe_of(page) / "results.jsonl"
        source.parent.mkdir(parents=True)
        source.write_text("".join(json.dumps(change(record)) + "\n" for record in records(page)), encoding="utf-8")
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    gpu.merge([tmp_path / "here"])
    once = {path.name: path.read_bytes() for path in (tmp_path / "recorded" / page.name).iterdir()}
    gpu.merge([tmp_path / "here", tmp_path / "elsewhere"])
    counts = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert counts == [len(records(page)), 0, 0]
    assert {path.name: path.read_bytes() for path in (tmp_path / "recorded" / page.name).iterdir()} == once
