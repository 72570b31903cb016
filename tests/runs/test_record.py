"""A run on disk: exact when read back, whole or not there at all, and never at the cost of somebody else's files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import acefl
from acefl import ACE, ASGD, InvalidInput, Run, Scenario, Stop, simulate, tasks
from acefl.core.files import atomic_directory
from acefl.core.settings import plain
from acefl.runs.record import machine

FILES = ("config.json", "metrics.jsonl", "events.parquet", "clients.parquet", "summary.json", "model.safetensors")


@pytest.fixture(scope="module")
def run() -> Run:
    scenario = Scenario(clock="tick", delay=3.0, spread=4.0)
    task = tasks.quadratic(clients=6, dim=3, seed=1)
    return simulate(task, ACE(), lr=0.1, scenario=scenario, stop=Stop(arrivals=60), evaluations=7, seed=5)


@pytest.fixture(scope="module")
def saved(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.save(tmp_path_factory.mktemp("runs") / "one")


def same(value: Any, other: Any) -> bool:
    """Equal, taking NaN as equal to itself."""
    return json.dumps(value) == json.dumps(other)


# --- reading back -----------------------------------------------------------------------------------------------


def test_what_is_loaded_is_what_was_saved(run: Run, saved: Path) -> None:
    again = acefl.load(saved)
    for field in dataclasses.fields(Run):
        if field.name not in ("model", "events"):
            assert same(getattr(again, field.name), getattr(run, field.name)), field.name
    assert torch.equal(again.model, run.model)
    assert again.model.dtype == run.model.dtype
    pd.testing.assert_frame_equal(again.events, run.events)
    pd.testing.assert_frame_equal(again.history, run.history)
    assert same(again.final, run.final)
    assert same(again.summary, run.summary)
    assert [type(value) for value in again.clients[0].values()] == [type(value) for value in run.clients[0].values()]


def test_what_is_loaded_can_be_saved_again_the_same(saved: Path, tmp_path: Path) -> None:
    again = acefl.load(saved).save(tmp_path / "again")
    for name in FILES:
        assert (again / name).read_bytes() == (saved / name).read_bytes(), name


def test_the_directory_holds_what_it_says_and_plain_formats_only(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)
    rows = [json.loads(line) for line in (saved / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert json.loads((saved / "summary.json").read_text())["uploads"] == len(pd.read_parquet(saved / "events.parquet"))
    assert json.loads((saved / "config.json").read_text())["scenario"]["clock"] == "tick"


def test_numbers_that_json_lacks_survive_as_nan(run: Run, tmp_path: Path) -> None:
    metrics = [{**run.metrics[0], "gap": math.nan, "loss": math.inf, "tiny": 5e-324, "third": 1 / 3}]
    clients = [{**row, "accuracy": math.nan} for row in run.clients]
    broken = dataclasses.replace(run, metrics=metrics, clients=clients, diverged=True)
    again = acefl.load(broken.save(tmp_path / "nan"))
    assert math.isnan(again.final["gap"])
    assert math.isnan(again.final["loss"])
    assert (again.final["tiny"], again.final["third"]) == (5e-324, 1 / 3)
    assert again.diverged
    assert all(math.isnan(row["accuracy"]) for row in again.clients)
    for name in ("metrics.jsonl", "summary.json"):
        assert "NaN" not in (tmp_path / "nan" / name).read_text()  # which no other language reads


def test_refusals_are_recorded(tmp_path: Path) -> None:
    task = tasks.quadratic(clients=3, dim=2, seed=0)
    diverging = simulate(task, ASGD(), lr=1e30, stop=Stop(arrivals=500), evaluations=1)
    again = acefl.load(diverging.save(tmp_path / "refused"))
    assert again.refused == diverging.refused
    assert again.refused["non-finite"] > 0
    assert (again.events["reason"] == diverging.events["reason"]).all()
    assert (~again.events["accepted"]).sum() == sum(again.refused.values())


# --- JSON -------------------------------------------------------------------------------------------------------


def test_machine_and_config_are_plain_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(machine())) == machine()
    assert {"cpu", "cores", "gpu", "python", "torch", "acefl"} <= set(machine())
    task = tasks.quadratic(clients=3, dim=2, seed=0)
    rule = ACE(home=tmp_path / "table")
    run = simulate(task, rule, lr=np.float32(0.125), stop=Stop(arrivals=np.int64(9)), seed=np.int64(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(run.config)) == run.config
    assert run.config["rule"]["home"] == str(tmp_path / "table")
    assert (run.config["lr"], run.config["seed"], run.config["stop"]["arrivals"]) == (0.125, 3, 9)


words = st.sampled_from(["", "a", "é", "two words", "line\n"])
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(json_like)
def test_plain_changes_nothing_but_what_json_lacks(value: Any) -> None:
    once = plain(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert plain(once) == once
    if "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value):
        assert once == value


def test_plain_understands_numbers_paths_and_the_rest() -> None:
    given_ = {"a": np.float32(0.5), "b": np.int64(2), "c": Path("x") / "y", "d": (1, 2), 3: True, "e": torch.float32}
    assert plain(given_) == {"a": 0.5, "b": 2, "c": "x/y", "d": [1, 2], "3": True, "e": "torch.float32"}


# --- all or nothing ---------------------------------------------------------------------------------------------


class FullDisk:
    """Events that cannot be written: the disk is full when half of the files are there."""

    def __len__(self) -> int:
        return 0

    def to_parquet(self, path: Path, index: bool) -> None:
        assert (Path(path).parent / "config.json").exists()
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("before", [False, True])
def test_a_failed_save_leaves_everything_as_it_was(run: Run, tmp_path: Path, before: bool) -> None:
    target = tmp_path / "deep" / "inside" / "run"
    if before:
        run.save(target)
    kept = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file())
    broken = dataclasses.replace(run, events=FullDisk())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        broken.save(target)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()) == kept
    assert (tmp_path / "deep").exists() == before
    if before:
        acefl.load(target)


def test_a_record_is_replaced_as_a_whole(run: Run, tmp_path: Path) -> None:
    target = run.save(tmp_path / "run")
    (target / "report.html").write_text("old")
    run.save(target)
    assert sorted(path.name for path in target.iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_directory_and_a_link_to_a_record_will_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run.save(tmp_path / "empty")
    (tmp_path / "latest").symlink_to(tmp_path / "empty")
    run.save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    acefl.load(tmp_path / "latest")


# --- other people's files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "ten years of work"},
        {"config.json": '{"model_type": "bert"}', "model.safetensors": "weights"},
        {"config.json": "not json", "thesis.tex": "ten years of work"},
        {"compare.json": "[]"},
    ],
)
def test_other_peoples_directories_are_refused_before_anything_runs(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / "theirs").mkdir(exist_ok=True)
        (tmp_path / "theirs" / name).write_text(content)
    calls: list[float] = []
    task = tasks.quadratic(clients=3, dim=2, seed=0)
    with pytest.raises(InvalidInput, match="theirs exists and is not an acefl record; allowed: a new or empty dir"):
        simulate(task, ASGD(), lr=0.1, out=tmp_path / "theirs", progress=calls.append)
    assert not calls
    assert {path.name: path.read_text() for path in (tmp_path / "theirs").iterdir()} == files


def test_a_file_is_no_place_for_a_record(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    with pytest.raises(InvalidInput, match="file exists and is not an acefl record"):
        run.save(tmp_path / "file")
    with pytest.raises(InvalidInput, match="cannot write .*file/run: File exists: .*file$"):
        run.save(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidInput, match="cannot write .*: Permission denied"):
            run.save(tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


def test_the_current_directory_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target in (".", "..", str(tmp_path)):
        with pytest.raises(InvalidInput):
            run.save(target)
    with atomic_directory(Path("below")) as into:
        (into / "file").write_text("fine")
    assert (tmp_path / "below" / "file").exists()


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(InvalidInput, match=name.replace(".", "\\.")) as refusal:
        acefl.load(tmp_path / "copy")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"format": 99}'),
        ("summary.json", "{}"),
        (
            "summary.json",
            '{"steps": 1e999, "arrivals": 1, "time": 1, "refused": {}, "wall_seconds": 1, "diverged": false}',
        ),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "[1, 2]\n"),
        ("metrics.jsonl", '{"step": 1}\n{"st'),
        ("events.parquet", "not parquet"),
        ("clients.parquet", ""),
        ("model.safetensors", "not tensors"),
    ],
)
def test_a_damaged_file_gets_one_clear_line(saved: Path, tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(content)
    with pytest.raises(InvalidInput, match="copy") as refusal:
        acefl.load(tmp_path / "copy")
    assert "\n" not in str(refusal.value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(FILES), st.integers(0, 2**20), st.integers(1, 255), st.booleans())
def test_damage_anywhere_is_refused_or_harmless(
    saved: Path, tmp_path: Path, name: str, where: int, flip: int, cut: bool
) -> None:
    """A byte changed, or the rest of a file lost: either it still reads as a run, or one line says what is wrong."""
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy, dirs_exist_ok=True)
    content = bytearray((saved / name).read_bytes())
    where %= len(content)
    content[where] ^= flip
    (copy / name).write_bytes(content[:where] if cut else content)
    message = ""
    try:
        acefl.load(copy)
    except InvalidInput as refusal:
        message = str(refusal)
    assert "\n" not in message


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere.config.json: missing"):
        acefl.load(tmp_path / "nowhere")
