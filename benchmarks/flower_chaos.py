"""Chaos on a real SuperLink: processes killed at random moments, answers spoiled, late and doubled; then the books.

`python -m benchmarks.flower_chaos --minutes 4` (or 30). SuperNodes, ClientApps and the ServerApp are killed by SIGKILL,
nodes are paused for seconds, one answer in four is spoiled or late, and the grid delivers every answer twice. A
ServerApp that was killed is started again by the same `flwr run`, and goes on from its checkpoint. In the end the model
must be, bit for bit, what a script of the recorded arrivals gives, and every refusal must have a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from acefl import ACED, Run, Stop, load
from acefl.core.loop import run
from acefl.core.server import Server
from acefl.fleets.flower.loopback import Loopback, free_port
from acefl.fleets.scripted import ScriptedFleet
from benchmarks.common import report

APP = Path(__file__).parent / "flower_chaos_app"
NODES = 3
PAUSE = (4.0, 9.0)  # seconds between two faults
LIMIT = 900.0  # seconds beyond the asked ones after which something is stuck


def processes(federation: Loopback, program: str, parent: int | None = None) -> list[int]:
    """Ours of this name, or children of this process."""
    found = []
    for process in federation._stragglers():
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            if int(stat[1]) == parent if parent is not None else any(part.endswith(program) for part in command[:2]):
                found.append(process)
    return found


class Chaos:
    """One federation, and what is done to it."""

    def __init__(self, federation: Loopback, out: Path, seconds: float, seed: int) -> None:
        self.federation, self.out, self.seconds = federation, out, seconds
        self.random, self.faults = random.Random(seed), Counter[str]()
        self.live = free_port()
        self.run = ""
        self.last_server_death = time.monotonic()

    def start_server(self) -> None:
        config = {"seconds": self.seconds, "nodes": NODES, "out": str(self.out), "live": self.live}
        self.run = self.federation.run(APP, config)

    def arrivals(self) -> int:
        """As the live page says; -1 while there is no ServerApp."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.live}/state.json", timeout=5) as page:
                return int(json.load(page)["arrivals"])
        except OSError:
            return -1

    def strike(self) -> None:
        """One fault, by chance; the ServerApp is left alone for a while after it was killed."""
        kinds = ["node", "clientapp", "clientapp", "paused node"]
        if time.monotonic() - self.last_server_death > 60:
            kinds.append("serverapp")
        kind, node = self.random.choice(kinds), self.random.randrange(NODES)
        if kind == "node":
            self.federation.kill_node(node)
            time.sleep(self.random.uniform(0.0, 3.0))
            self.federation.restart_node(node)
        elif kind == "clientapp":
            children = processes(self.federation, "", self.federation._processes[f"executor-{node}"].pid)
            if not children:
                return
            os.kill(children[0], signal.SIGKILL)
        elif kind == "paused node":
            group = self.federation._processes[f"node-{node}"].pid
            os.killpg(group, signal.SIGSTOP)
            time.sleep(self.random.uniform(1.0, 4.0))
            os.killpg(group, signal.SIGCONT)
        else:
            servers = processes(self.federation, "flwr-serverapp")
            if not servers or self.arrivals() < 1:
                return
            for server in servers:
                os.kill(server, signal.SIGKILL)
            self.last_server_death = time.monotonic()
            self.start_server()
        self.faults[kind] += 1
        print(f"{time.strftime('%H:%M:%S')} {kind}; {self.arrivals()} arrivals", flush=True)

    def to_the_end(self) -> None:
        until = time.monotonic() + self.seconds + LIMIT
        self.start_server()
        while not (self.out / "summary.json").exists():
            if time.monotonic() > until:
                raise SystemExit(f"stuck:\n{self.federation.log('superlink')[-3000:]}")
            time.sleep(self.random.uniform(*PAUSE))
            if self.arrivals() > 0:
                self.strike()


def partitions(federation: Loopback) -> dict[str, int]:
    """Which data each node id had: a node without a key gets a new id whenever it starts."""
    found = {node: re.findall(r"SuperNode ID: (\d+)", federation.log(f"node-{node}")) for node in range(NODES)}
    return {node_id: node for node, ids in found.items() for node_id in ids}


def replayed(made: Run, data: dict[str, int]) -> torch.Tensor:
    """The model that a script of the recorded accepted arrivals gives."""
    sys.path.insert(0, str(APP))
    from flower_chaos import task  # type: ignore[import-not-found]

    nodes = made.config["nodes"]
    accepted = made.events[made.events["accepted"]]
    rows = accepted[["client", "trained_on", "version"]].itertuples(index=False)
    script = [[(int(row[0]), int(row[1])) for row in turn] for _, turn in groupby(rows, key=lambda row: row[2])]
    fleet = ScriptedFleet(script, lambda client, visit, model: task.gradient(data[nodes[client]], model))
    server = Server(task.start(), ACED(tau=40, warmup="seen").build(len(nodes), task.start()), task.LR, len(nodes))
    for _ in run(server, fleet, Stop(arrivals=len(accepted))):
        pass
    return server.model


def chaos(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """One federation's life, and what its books say."""
    out = folder / "out"
    with Loopback(folder / "flower", secure=False) as federation:
        for node in range(NODES):
            federation.start_node(node, f"partition-id={node} num-partitions={NODES}")
        life = Chaos(federation, out, 60 * minutes, seed)
        life.to_the_end()
        data = partitions(federation)
    made = load(out)
    events = made.events
    refused = events[~events["accepted"]]
    visits = events[events["accepted"]].groupby(["client", "sent"]).size()
    return {
        "minutes": minutes,
        "processes killed or paused": sum(life.faults.values()),
        "of these": dict(life.faults),
        "answers refused": len(refused),
        "reasons": dict(Counter(refused["reason"])),
        "refused without a reason": int((refused["reason"] == "").sum()),
        "accepted": int(events["accepted"].sum()),
        "accepted twice": int((visits > 1).sum()),
        "accepted, said and recorded differ by": int(abs(made.arrivals - events["accepted"].sum())),
        "clients": len(made.participation),
        "model equals the replay, bit for bit": bool(torch.equal(replayed(made, data), made.model)),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = chaos(Path(scratch), given.minutes, given.seed)
    equal = found["model equals the replay, bit for bit"]
    targets = [
        {"what": "model equals the replay of its record", "measured": equal, "asked": "bit for bit", "met": equal},
        {
            "what": "answers accepted twice",
            "measured": found["accepted twice"],
            "asked": "0",
            "met": not found["accepted twice"],
        },
    ]
    report("flower_chaos", "Chaos on a real SuperLink", [found], targets)


if __name__ == "__main__":
    main()
