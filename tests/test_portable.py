"""Records and scripts name no place on the machine they were made on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.common import portable as portable_argument
from experiments.ace import gpu

from acefl.paper.records import Ledger
from acefl.studies.sweep import Cell

ROOT = Path(__file__).parents[1]
_RECORDS = [
    *(ROOT / "benchmarks" / "results").glob("*.json"),
    *(path for end in ("json", "jsonl", "md", "txt") for path in (ROOT / "experiments").rglob(f"*.{end}")),
    ROOT / "src" / "acefl" / "report" / "leaderboard.json",
]
_SCRIPTS = [path for part in ("benchmarks", "experiments", "examples") for path in (ROOT / part).rglob("*.py")]
# "and/or" is not a path: a place begins after a blank or a quote
_PLACE = re.compile(
    r"""(?:^|[\s"'=`(])((?:/(?:tmp|home|root|work|mnt|opt|var|data)|\.\.|~|carry)/[^\s"'`)]*)""", re.MULTILINE
)


@pytest.mark.parametrize("path", [*_RECORDS, *_SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_place_of_one_machine_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.sub(r"\]\([^)]*\)", "", text) if path.suffix == ".md" else text
    assert _PLACE.findall(links) == []


@pytest.mark.parametrize("text", ['"--out /tmp/w/x"', '"../shared/data"', "carry/encoder is", "~/data", '"/home/me/a"'])
def test_a_place_is_recognised(text: str) -> None:
    assert _PLACE.findall(text)


@pytest.mark.parametrize(
    ("given", "recorded"), [("/somewhere/cache", "PATH"), ("../data", "PATH"), ("--repeats", "--repeats"), ("1", "1")]
)
def test_a_benchmark_records_its_arguments_without_places(given: str, recorded: str) -> None:
    assert portable_argument(given) == recorded


@pytest.mark.parametrize("name", ["news20-table", "readings", "cifar10-main"])
def test_a_run_made_with_inputs_elsewhere_is_recorded_as_the_same_run(name: str) -> None:
    for record in list(Ledger(gpu.HERE / "recorded" / name / "results.jsonl").records.values()):
        assert gpu.portable(record) == record
        assert Cell(record["settings"]).name == record["cell"]
        moved = {**record["settings"], "task.folder": "/elsewhere/images"}
        if record["settings"].get("task.model") == gpu.ENCODER:
            moved["task.model"] = "/elsewhere/encoder"
        if "task.start" in moved:
            moved["task.start"] = "/elsewhere/start.safetensors"
        there = {**record, "cell": Cell(moved).name, "settings": moved}
        assert there["cell"] != record["cell"]
        assert gpu.portable(there) == record


def test_stages_take_their_inputs_from_the_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, start = tmp_path / "encoder", tmp_path / "start.safetensors"
    for folder in ("cifar10", "news20"):
        (tmp_path / folder).mkdir()
    assert gpu.plan(["news"], gpu.Inputs(tmp_path, encoder, start), "cpu", {}) == []
    assert f"left out news: no {encoder}" in capsys.readouterr().out
    encoder.touch()
    start.touch()
    inputs = gpu.Inputs(tmp_path, encoder, start)
    assert {one.settings["task.model"] for one in gpu.plan(["news"], inputs, "cpu", {})} == {str(encoder)}
    assert {one.settings["task.start"] for one in gpu.plan(["pretrained12"], inputs, "cpu", {})} == {str(start)}
    assert {one.settings["task.folder"] for one in gpu.plan(["main0"], inputs, "cpu", {})} == {
        str(tmp_path / "cifar10")
    }


def test_a_stage_goes_seed_by_seed(tmp_path: Path) -> None:
    """A stage that the clock ends then has whole seeds, which is what pages compare."""
    (tmp_path / "cifar10").mkdir()
    runs = gpu.plan(["tau12"], gpu.Inputs(tmp_path), "cpu", {})
    assert [list(run.seeds) for run in runs] == [[1]] * 7 + [[2]] * 7


def test_what_is_recorded_is_not_made_again_wherever_the_data_lie(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    assert len(gpu.plan(["main0"], gpu.Inputs(tmp_path), "cpu", {})) > 0
    assert gpu.plan(["main0"], gpu.Inputs(tmp_path), "cuda", {}) == []
