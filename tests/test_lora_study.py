"""`experiments/lora`: the study goes on where it was stopped, treats methods alike, and its page says what is there."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from experiments.lora import page, study, texts

from acefl.core.errors import InvalidInput
from acefl.paper.records import Ledger


def test_it_is_stopped_by_the_clock_goes_on_and_shows_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["run", "--quick", "--out", str(tmp_path), "--only", "A and B, tied to data"]
    study.main([*quick, "--seconds", "1"])
    assert "something is missing" in capsys.readouterr().out
    first = (tmp_path / "results.jsonl").read_text() if (tmp_path / "results.jsonl").exists() else ""
    study.main(quick)
    assert "nothing is missing" in capsys.readouterr().out
    assert (tmp_path / "results.jsonl").read_text().startswith(first)
    records = Ledger(tmp_path / "results.jsonl").records.values()
    effort = Counter((*record["labels"].values(), record["kind"]) for record in records)
    trials = {effort.pop(key) for key in list(effort) if key[-1] == "trial"}
    assert trials <= set(range(len(study.RATES), len(study.RATES) + study.EXTENSIONS + 1))
    assert set(effort.values()) == {len(study.SEEDS)}  # runs and longer runs of every method
    assert {record["compute"]["strategy"] for record in records} == {"adapters"}
    assert all(len(record["clients"]) == 20 for record in records if record["kind"] == "trial")
    longer = {
        (*record["labels"].values(), record["settings"]["seed"]): record
        for record in records
        if record["kind"] == page.LONGER
    }
    for run in (record for record in records if record["kind"] == "run" and record["clients"] is None):
        beyond = longer[(*run["labels"].values(), run["settings"]["seed"])]
        assert run["history"] == [row for row in beyond["history"] if row["arrival"] <= study.QUICK.arrivals]
        assert (run["arrivals"], 2 * run["arrivals"]) == (study.QUICK.arrivals, beyond["arrivals"])
    written = (tmp_path / "README.md").read_text()
    assert "Not for citing" in written
    assert written.count("| FedAvg |") == 1
    assert written.count("Not recorded yet.") == 3  # the other cells
    with pytest.raises(InvalidInput, match="runs of other settings"):
        study.main([*quick, "--bf16"])


def test_a_run_that_outlasts_the_time_is_left_and_not_recorded(tmp_path: Path) -> None:
    given = argparse.Namespace(
        data=None,
        model=None,
        device="cpu",
        bf16=False,
        quick=True,
        only=(),
        methods=study.METHODS,
        compile=False,
        seconds=1.0,
    )
    endless = study.Study(tmp_path, given, dataclasses.replace(study.QUICK, arrivals=20_000))
    assert not endless.fill()
    assert not endless.ledger.records


@pytest.mark.parametrize("small", [False, True])
def test_the_page_is_that_of_the_records(small: bool, tmp_path: Path) -> None:
    """Made again from what is recorded, it is the one in the repository."""
    kept = study.HERE / "small" if small else study.HERE
    for name in ("results.jsonl", "machine.json"):
        if (kept / name).exists():
            (tmp_path / name).write_bytes((kept / name).read_bytes())
    study.main(["page", "--out", str(tmp_path), *(["--small"] if small else [])])
    assert (tmp_path / "README.md").read_text() == (kept / "README.md").read_text()


def test_clients_have_messages_of_one_group_and_hold_out_later_ones(tmp_path: Path) -> None:
    for split, count in (("train", 12), ("test", 6)):
        for group in range(texts.GROUPS):
            folder = tmp_path / f"20news-bydate-{split}" / f"group-{group:02}"
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number:03}").write_text(f"From: me\n\n{split} {group} {number} " + "word " * 60)
    train, held_out = texts.by_group(tmp_path, 5, 2, 1)
    assert list(train) == list(held_out)
    assert len(train) == 100
    assert [len(own) for own in train.values()] == [2] * 100
    for client, own in train.items():
        group = int(client.partition("-")[0])
        assert all(text.startswith(f"train {group} ") for text in own)
        assert held_out[client][0].startswith(f"test {group} ")
    everything = [text for own in train.values() for text in own]
    assert len(set(everything)) == len(everything)  # nobody has another's
