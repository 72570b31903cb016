"""What a federation of 4, 20 and 100 nodes costs, process by process, on a real SuperLink.

`python -m benchmarks.flower_nodes` (seven minutes on two cores). Real in every row: the SuperLink with its state in
memory, Flower's default; its SuperExec; our ServerApp in Flower's own process; the wire (HTTP over loopback, without
TLS). `real` nodes are `flower-supernode` processes with `python -m acefl.flower.executor` beside each. `light` nodes
are threads of one process that speak Flower's Fleet API by Flower's own code (`benchmarks.flower_light_nodes`). All of
them run the same ClientApp, which scales a model of 1 MB in four arrays. CPU and memory are read from /proc, from when
every node has answered once (or after three minutes). An answer's age is the time from its ClientApp's end until our
server takes it in.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acefl.fleets.flower.loopback import Loopback
from benchmarks.common import report

APP = Path(__file__).parent / "flower_nodes_app"
STARTS_WITHIN = 180.0  # seconds for every node to answer once
TICK = os.sysconf("SC_CLK_TCK")
KINDS = {  # a part of the command line -> whose process it is
    "flower-superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "ServerApp",
    "flower-supernode": "SuperNodes",
    "acefl.flower.executor": "executors",
    "benchmarks.flower_light_nodes": "light nodes",
}
FLOWERS = ("SuperLink", "SuperExec", "SuperNodes", "executors")


@contextlib.contextmanager
def light_nodes(federation: Loopback, nodes: int) -> Iterator[None]:
    """A process of so many light nodes."""
    address = f"127.0.0.1:{federation.port}"
    with (federation.folder / "light.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.flower_light_nodes", address, str(nodes)],
            env=federation._environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def usage(federation: Loopback) -> tuple[Counter[str], Counter[str]]:
    """Seconds of CPU and MB of memory that each kind of process has taken; shared pages count once.

    A process's children that are over, the executors' ClientApps, count for their parent.
    """
    seconds, megabytes = Counter[str](), Counter[str]()
    for process in federation._stragglers():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{process}/cmdline").read_text()
            kind = next((kind for part, kind in KINDS.items() if part in command), "other")
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            seconds[kind] += sum(map(int, stat[11:15])) / TICK
            proportional = Path(f"/proc/{process}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0]
            megabytes[kind] += int(proportional) / 1024
    return seconds, megabytes


def lines(path: Path) -> list[list[float]]:
    """The numbers of each line that is complete."""
    if not path.exists():
        return []
    return [[float(word) for word in line.split()] for line in path.read_text().split("\n")[:-1]]


def wait_for_answers(federation: Loopback, notes: Path, nodes: int) -> int:
    """How many nodes have answered when all have, or when it takes too long: on a busy machine some are slow."""
    until = time.monotonic() + STARTS_WITHIN
    while (heard := len({client for client, *_ in lines(notes / "taken")})) < nodes and time.monotonic() < until:
        time.sleep(0.5)
    if not heard:
        raise SystemExit(f"no node has answered:\n{federation.log('superlink')[-3000:]}")
    return heard


def measure(folder: Path, nodes: int, seconds: float, *, real: bool) -> dict[str, Any]:
    """One federation, from when everybody has answered once."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        federation = stack.enter_context(Loopback(folder / "flower", secure=False))
        if real:
            for node in range(nodes):
                federation.start_node(node, f"partition-id={node} num-partitions={nodes}")
        else:
            stack.enter_context(light_nodes(federation, nodes))
        federation.run(APP, {"nodes": nodes, "notes": str(notes)})
        heard = wait_for_answers(federation, notes, nodes)
        began, (before, _) = time.time(), usage(federation)
        time.sleep(seconds)
        ended, (after, megabytes) = time.time(), usage(federation)
    made = {int(task): when for task, when in lines(notes / "made")}
    taken = {int(task): when for _, task, when in lines(notes / "taken") if began < when <= ended}
    if not taken:
        raise SystemExit(f"no answer of {nodes} nodes in {seconds:g} s")
    ages = sorted(when - made[task] for task, when in taken.items())
    cpu = {kind: after[kind] - before[kind] for kind in (*KINDS.values(), "other")}
    flowers = sum(cpu[kind] for kind in FLOWERS)
    return {
        "nodes": nodes,
        "kind": "real" if real else "light",
        "nodes heard of at the start": heard,
        "arrivals per minute": 60 * len(taken) / (ended - began),
        "CPU share of a core": {kind: round(spent / (ended - began), 3) for kind, spent in cpu.items() if spent},
        "CPU ms per arrival": {kind: round(1000 * spent / len(taken), 1) for kind, spent in cpu.items() if spent},
        "memory MB": {kind: round(size) for kind, size in megabytes.items()},
        "ServerApp's CPU / Flower's": cpu["ServerApp"] / flowers,
        "the same, light nodes counted as Flower's": cpu["ServerApp"] / (flowers + cpu["light nodes"]),
        "age of an answer s, mean": sum(ages) / len(ages),
        "99 of 100 at most s": ages[int(0.99 * (len(ages) - 1))],
        "the oldest s": ages[-1],
        "load of the machine": os.getloadavg()[0],
    }


def targets(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    many = next((row for row in rows if row["nodes"] == 100), None)
    if many is None:
        return []
    rate, share = many["arrivals per minute"], many["ServerApp's CPU / Flower's"]
    return [
        {
            "what": "arrivals per minute, 100 light nodes",
            "measured": rate,
            "asked": "at least 300",
            "met": rate >= 300,
        },
        {
            "what": "CPU of our ServerApp over that of Flower's processes (SuperLink, SuperExec), 100 light nodes",
            "measured": share,
            "asked": "under 0.15",
            "met": share < 0.15,
        },
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=40.0, help="per federation, once everybody has answered")
    options.add_argument("--light", type=int, nargs="*", default=[4, 20, 100], help="numbers of light nodes")
    options.add_argument("--real", type=int, nargs="*", default=[4, 20], help="numbers of real nodes")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for real, counts in ((True, given.real), (False, given.light)):
        for nodes in counts:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(measure(Path(scratch), nodes, given.seconds, real=real))
            report("flower_nodes", "Nodes on a real SuperLink, process by process", rows, targets(rows))


if __name__ == "__main__":
    main()
