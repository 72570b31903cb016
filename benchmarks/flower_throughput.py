"""Arrivals per minute of a Flower federation: ClientApps started by Flower, and forked by `acefl.flower.executor`.

`python -m benchmarks.flower_throughput` starts a SuperLink and four SuperNodes on loopback, first the one way and then
the other, and trains the example app on each (six minutes). Nodes do nothing but their ten local steps, so this is what
Flower itself costs. Counting begins when every node has answered twice: what an app imports is learned from its first
message.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from acefl import load
from acefl.fleets.flower.loopback import Loopback
from benchmarks.common import report

APP = Path(__file__).parents[1] / "examples" / "flower-digits"
ASKED = 3.5


def measure(folder: Path, nodes: int, arrivals: int, *, preloaded: bool) -> dict[str, Any]:
    """One federation's arrivals per minute, once every node has answered twice."""
    out = folder / "out"
    with Loopback(folder / "flower", secure=False, preloaded=preloaded) as federation:
        for node in range(nodes):
            federation.start_node(node, f"partition-id={node} num-partitions={nodes}")
        config = {"arrivals": arrivals + 2 * nodes, "nodes": nodes, "surveys": 0, "out": str(out)}
        status = federation.wait(federation.run(APP, config), 1800)
        if status != "finished:completed":
            raise SystemExit(f"the run ended as {status}:\n{federation.log('superlink')}")
    events = load(out).events
    second = events.groupby("client")["time"].nth(1)
    counted = events[events["time"] > second.max()]
    minutes = float(events["time"].iloc[-1] - second.max()) / 60
    return {
        "ClientApps": "forked by acefl.flower.executor" if preloaded else "started by Flower",
        "nodes": nodes,
        "arrivals": len(counted),
        "minutes": minutes,
        "arrivals per minute": len(counted) / minutes,
        "load of the machine": os.getloadavg()[0],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=4)
    options.add_argument(
        "--arrivals", type=int, default=24, help="of the stock federation; three times as many of ours"
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stock = measure(Path(scratch) / "stock", given.nodes, given.arrivals, preloaded=False)
        ours = measure(Path(scratch) / "forked", given.nodes, 3 * given.arrivals, preloaded=True)
    ratio = ours["arrivals per minute"] / stock["arrivals per minute"]
    target = {
        "what": f"arrivals per minute over those of Flower's own executor, {given.nodes} nodes",
        "measured": ratio,
        "asked": f"at least {ASKED}",
        "met": ratio >= ASKED,
    }
    report("flower_throughput", "Flower on loopback: how fast answers come", [stock, ours], [target])


if __name__ == "__main__":
    main()
