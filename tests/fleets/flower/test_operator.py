"""What an operator sees of a federation: the live page's nodes, and JSON lines with the facts of what happened."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from tests.fleets.flower.fake_grid import FIRST_NODE
from tests.fleets.flower.test_learning_rate import START, InTurn, train

from acefl import ACE, Every, InvalidInput, Stop
from acefl.flower import run_async
from acefl.runs.live import LivePage
from acefl.runs.live_log import JsonLines

ARRAYS = ArrayRecord({"w": Array(START.numpy())})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_nodes_refusals_and_checkpoints_are_seen_and_told(tmp_path: Path) -> None:
    asked = 0

    def forgets_the_mod_at_first(message: Message, context: Context) -> Message:
        nonlocal asked
        if context.node_id == FIRST_NODE + 1 and (asked := asked + 1) == 1:
            return Message(RecordDict({"acefl": message.content["acefl"]}), reply_to=message)
        return train(message, context)

    page, told = LivePage(0, names={FIRST_NODE: "Oslo"}), JsonLines(tmp_path / "logs" / "run.jsonl")
    try:
        run_async(
            InTurn(forgets_the_mod_at_first, 3), ACE(warmup="seen"), ARRAYS, stop=Stop(arrivals=30), nodes=3,
            out=tmp_path / "run", checkpoint=Every(arrivals=10), observers=[page, told], drain=5.0,
        )  # fmt: skip
        shown = page.snapshot()
        told.evaluated({"step": 3, "accuracy": 0.5, "loss": float("nan")})
    finally:
        page.close()
        told.close()
    assert [(c["node"], c["name"], c["connected"]) for c in shown["clients"]] == [
        (str(FIRST_NODE), "Oslo", True), (str(FIRST_NODE + 1), "", True), (str(FIRST_NODE + 2), "", True),
    ]  # fmt: skip
    assert shown["refused"] == shown["clients"][1]["refused"] == {"no-update": 1}
    events = [line for line in lines(tmp_path / "logs" / "run.jsonl") if "event" in line]
    assert all({"time", "level", "message"} <= set(line) for line in events)
    kinds = [line["event"] for line in events]
    joined = [(line["client"], line["node"]) for line in events if line["event"] == "joined"]
    assert joined == [(client, str(FIRST_NODE + client)) for client in range(3)]
    [refused] = [line for line in events if line["event"] == "refused"]
    assert (refused["client"], refused["reason"]) == (1, "no-update")
    assert kinds.count("lost") == 1
    assert kinds.count("checkpoint") >= 2
    assert (events[-1]["accuracy"], events[-1]["loss"]) == (0.5, None)


def test_words_that_would_break_a_line_do_not(tmp_path: Path) -> None:
    told = JsonLines(tmp_path / "run.jsonl")
    logging.getLogger("acefl").warning('a "line"\nof %s', {"two": 2})
    told.close()
    logging.getLogger("acefl").warning("after the end")
    assert [line["message"] for line in lines(tmp_path / "run.jsonl")] == ["a \"line\"\nof {'two': 2}"]


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot write JSON lines"):
        JsonLines(tmp_path)
