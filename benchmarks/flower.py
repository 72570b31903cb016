"""Flower: what our side adds to a message's way, and how long nodes wait for us.

`python -m benchmarks.flower` starts a SuperLink and SuperNodes on loopback (some minutes). For each answer the way from
the SuperLink to the next model for that node has four parts: waiting until we look, fetching (Flower's pull), ours
(reading the update, the method's step, making the next message), and sending (Flower's push). A node looks for its next
model when it has sent its answer, finds none, and looks again three seconds later, whatever we do; so if the whole way
takes less than that, no node idles for longer than Flower's own interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from acefl.fleets.flower.loopback import Loopback
from benchmarks.common import report

APP = Path(__file__).parent / "flower_app"
ENGINE_POLL = 3.0  # seconds a SuperNode sleeps after it found no message
MEGABYTE = 1_000_000


def measure(folder: Path, nodes: int, config: dict[str, Any], slowness: dict[int, int]) -> list[dict[str, Any]]:
    """The notes of one run."""
    out = folder / "notes.json"
    with Loopback(folder / "flower", secure=False) as federation:
        for node in range(nodes):
            settings = f"partition-id={node} num-partitions={nodes} slowness={slowness.get(node, 1)}"
            federation.start_node(node, settings)
        run = federation.run(APP, {**config, "nodes": nodes, "out": str(out)})
        status = federation.wait(run, 1800)
        if status != "finished:completed":
            raise SystemExit(f"the run ended as {status}:\n{federation.log('superlink')}")
    notes: list[dict[str, Any]] = json.loads(out.read_text())
    return notes


def ways(notes: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Each answer with the next push to its node: the seconds of its parts."""
    found = []
    pushes = sorted((note for note in notes if note["what"] == "push"), key=lambda note: note["began"])
    pulls = [note for note in notes if note["what"] == "pull" and "ended_work" in note]
    answers = {pull["id"]: pull for pull in pulls}
    for pull in pulls:
        sent = next((p for p in pushes if p["id"] == pull["id"]), None)
        after = next((p for p in pushes if p["node"] == pull["node"] and p["began"] >= pull["ended"]), None)
        if sent is None or after is None:
            continue
        came = max(pull["looked_before"], pull["ended_work"])  # at the earliest: a look before found nothing
        way = {
            "wait": pull["began"] - came,
            "pull": pull["ended"] - pull["began"],
            "ours": after["began"] - pull["ended"],
            "push": after["ended"] - after["began"],
            "turn": after["ended"] - came,  # from the answer's being there to the next model's
            "round": pull["ended"] - sent["began"],
        }
        if after["id"] in answers:
            way["pause"] = answers[after["id"]]["began_work"] - pull["ended_work"]
        found.append(way)
    return found


def middle(found: list[dict[str, float]], part: str) -> float:
    return statistics.median(way[part] for way in found if part in way)


def share(found: list[dict[str, float]]) -> float:
    """Ours over what Flower spends on fetching the answer and sending the next model."""
    return statistics.median(way["ours"] / (way["pull"] + way["push"]) for way in found)


def row(model: str, found: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "model": model,
        "answers": len(found),
        "Flower's pull + push s": middle(found, "pull") + middle(found, "push"),
        "ours s": middle(found, "ours"),
        "ours / Flower's": share(found),
        "answer there to next model there, at most s": middle(found, "turn"),
        "the longest": max(way["turn"] for way in found),
        "node's pause between two works s": middle(found, "pause"),
        "ours + our wait / round trip": statistics.median((way["ours"] + way["wait"]) / way["round"] for way in found),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arrivals", type=int, default=16, help="per measurement")
    given = options.parse_args()
    rows, targets = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for megabytes in (1, 45):
            config = {"dim": megabytes * MEGABYTE // 4, "arrivals": given.arrivals}
            found = ways(measure(Path(scratch) / f"{megabytes}mb", 2, config, {}))
            rows.append(row(f"{megabytes} MB, 2 nodes", found))
            targets.append(
                {
                    "what": f"our share of what Flower spends between answer and next model, {megabytes} MB",
                    "measured": share(found),
                    "asked": "under 0.1",
                    "met": share(found) < 0.1,
                }
            )
        slow = {"dim": MEGABYTE // 4, "arrivals": 2 * given.arrivals, "work-seconds": 1.0}
        found = ways(measure(Path(scratch) / "slow", 4, slow, {3: 10}))
    rows.append(row("1 MB, 4 nodes, one 10x slower", found))
    longest = max(way["turn"] for way in found)
    targets.append(
        {
            "what": "longest time from a node's answer being there to its next model's (s), one node 10x slower",
            "measured": longest,
            "asked": f"under {ENGINE_POLL:g}: after so long a node that found no model looks again",
            "met": longest < ENGINE_POLL,
        }
    )
    report("flower", "Flower on loopback: one answer's way to the next model", rows, targets)


if __name__ == "__main__":
    main()
