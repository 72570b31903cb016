"""Flower: what our side adds to a message's way, and how long nodes wait for us.

`python -m benchmarks.flower` starts a SuperLink and SuperNodes on loopback (some minutes). For each answer the way from
the SuperLink to the next model for that node has four parts: waiting until we look, fetching (Flower's pull), ours
(reading the update, the method's step, making the next message), and sending (Flower's push).
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
    for pull in (note for note in notes if note["what"] == "pull"):
        sent = next((p for p in pushes if p["id"] == pull["id"]), None)
        after = next((p for p in pushes if p["node"] == pull["node"] and p["began"] >= pull["ended"]), None)
        if sent is None or after is None:
            continue
        found.append(
            {
                "wait": pull["began"] - max(pull["looked_before"], pull["created"]),  # at most: it came in between
                "pull": pull["ended"] - pull["began"],
                "ours": after["began"] - pull["ended"],
                "push": after["ended"] - after["began"],
                "idle": after["ended"] - pull["created"],  # from the end of the node's work to its next model
                "round": pull["ended"] - sent["began"],
                "node": pull["node"],
            }
        )
    return found


def middle(found: list[dict[str, float]], part: str) -> float:
    return statistics.median(way[part] for way in found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arrivals", type=int, default=16, help="per measurement")
    given = options.parse_args()
    rows, targets = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for megabytes in (1, 45):
            config = {"dim": megabytes * MEGABYTE // 4, "arrivals": given.arrivals}
            found = ways(measure(Path(scratch) / f"{megabytes}mb", 2, config, {}))
            flower = middle(found, "pull") + middle(found, "push")
            share = statistics.median(way["ours"] / (way["pull"] + way["push"]) for way in found)
            rows.append(
                {
                    "model": f"{megabytes} MB, 2 nodes",
                    "answers": len(found),
                    "waits at most s": middle(found, "wait"),
                    "Flower's pull + push s": flower,
                    "ours s": middle(found, "ours"),
                    "ours / Flower's": share,
                    "ours + wait / round trip": statistics.median((w["ours"] + w["wait"]) / w["round"] for w in found),
                }
            )
            targets.append(
                {
                    "what": f"our share of what Flower spends between answer and next model, {megabytes} MB",
                    "measured": share,
                    "asked": "under 0.1",
                    "met": share < 0.1,
                }
            )
        found = ways(
            measure(
                Path(scratch) / "slow",
                4,
                {"dim": MEGABYTE // 4, "arrivals": 2 * given.arrivals, "work-seconds": 1.0},
                {3: 10},
            )
        )
    idle = max(way["idle"] for way in found)
    rows.append(
        {
            "model": "1 MB, 4 nodes, one 10x slower",
            "answers": len(found),
            "waits at most s": middle(found, "wait"),
            "Flower's pull + push s": middle(found, "pull") + middle(found, "push"),
            "ours s": middle(found, "ours"),
            "ours / Flower's": statistics.median(way["ours"] / (way["pull"] + way["push"]) for way in found),
            "ours + wait / round trip": statistics.median((w["ours"] + w["wait"]) / w["round"] for w in found),
        }
    )
    targets.append(
        {
            "what": "longest time from the end of a node's work to its next model (s), one node 10x slower",
            "measured": idle,
            "asked": f"under the engine's polling interval, {ENGINE_POLL:g}",
            "met": idle < ENGINE_POLL,
        }
    )
    report("flower", "Flower on loopback: one answer's way to the next model", rows, targets)


if __name__ == "__main__":
    main()
