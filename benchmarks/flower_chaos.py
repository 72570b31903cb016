"""Chaos on a real SuperLink: processes killed at random moments, networks cut, disks full, bad answers; then the books.

`python -m benchmarks.flower_chaos --minutes 30 --method "ACED(tau=12, warmup='seen')"`. SuperNodes, ClientApps, the
ServerApp and the SuperLink are killed by SIGKILL; nodes are paused, leave for good and join late; the network of a node
is cut and healed, and the server's disk is full for seconds. One answer in four is spoiled or late, and the grid
delivers every answer twice. Whatever was killed is started again by the command it was started with: the SuperLink goes
on with its database, and the ServerApp, by the same `flwr run`, with its checkpoint. In the end the model must be, bit
for bit, the replay of its record, and every refusal must have a reason.

It runs in a network and a mount namespace of its own (`unshare --net --mount`, which takes root): each node is behind
a virtual cable, and the server's `out` is a tmpfs of 8 MB. Where they cannot be made, it says so and leaves both out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from acefl import load, rules
from acefl.core.errors import AceflError
from acefl.core.types import Vector
from acefl.fleets.flower.loopback import NAME, Loopback, free_port
from acefl.tasks.base import Evaluation
from benchmarks.chaos import LOST, books, by_fifths, checkpoints_lost, resident, targets
from benchmarks.common import report

APP = Path(__file__).parent / "flower_chaos_app"
METHOD = "ACED(tau=12, warmup='seen')"
FEWEST, MOST = 3, 5  # nodes
PAUSE = (1.0, 3.5)  # seconds between two faults
CALM = 45.0  # seconds of life that a ServerApp gets after it was started, and the run gets at the end
LIMIT = 900.0  # seconds beyond the asked ones after which something is stuck
DISK = 8 << 20  # bytes of the server's disk
INSIDE = "ACEFL_CHAOS_INSIDE"  # set in the namespaces
KINDS = {  # by how often
    "clientapp killed": 6,
    "node killed": 5,
    "node paused": 4,
    "network cut": 4,
    "executor killed": 2,
    "node leaves for good": 2,
    "node joins late": 2,
    "disk full": 2,
    "serverapp killed": 2,
    "superlink killed": 1,
}


class Cable:
    """A network namespace with a virtual cable to ours, which can be pulled out and put back."""

    def __init__(self, number: int) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.enter = ("nsenter", "--net", "--target", str(self._holder.pid))
        self.server = f"10.77.{number}.1"
        time.sleep(0.5)  # until the holder has its namespace
        ours, theirs = f"chaos{number}", "chaos"
        _do("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", str(self._holder.pid))
        _do("ip", "addr", "add", f"{self.server}/24", "dev", ours)
        _do("ip", "link", "set", ours, "up")
        _do(*self.enter, "ip", "link", "set", "lo", "up")
        _do(*self.enter, "ip", "addr", "add", f"10.77.{number}.2/24", "dev", theirs)
        self.put(back=True)

    def put(self, *, back: bool) -> None:
        _do(*self.enter, "ip", "link", "set", "chaos", "up" if back else "down")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


class Chaos:
    """One federation, and what is done to it."""

    def __init__(self, federation: Loopback, folder: Path, method: str, seed: int, namespaces: bool) -> None:
        self.federation, self.method, self._namespaces = federation, method, namespaces
        self.disk = folder / "disk"
        self.disk.mkdir()
        if namespaces:
            _do("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.disk))
        self.out, self.lines = self.disk / "out", folder / "out.jsonl"
        self.random, self.faults = random.Random(seed), Counter[str]()
        self.live = free_port()
        self.cables: dict[int, Cable] = {}
        self.nodes: list[int] = []  # that are there, or are about to come back
        self.all_nodes = 0
        self.by_itself = 0  # how often a ServerApp ended without being killed, and was started again
        self.run, self.seconds, self.server_started = "", 1e9, 0.0
        self.memory: list[list[float]] = []  # minute, MB of the ServerApp, MB of the SuperLink
        self._began = time.monotonic()
        self._measured = 0.0

    def add_node(self) -> None:
        number, self.all_nodes = self.all_nodes, self.all_nodes + 1
        inside: tuple[str, ...] = ()
        superlink = "127.0.0.1"
        if self._namespaces:
            cable = self.cables[number] = Cable(number)
            inside, superlink = cable.enter, cable.server
        self.federation.start_node(number, f"partition-id={number}", inside=inside, superlink=superlink)
        self.nodes.append(number)

    def start_server(self) -> None:
        """By `flwr run`, until the SuperLink takes it."""
        config = {
            "method": self.method, "seconds": self.seconds, "out": str(self.out), "lines": str(self.lines),
            "live": self.live,
        }  # fmt: skip
        for attempt in range(10):
            try:
                self.run = self.federation.run(APP, config)
                self.server_started = time.monotonic()
                return
            except (AceflError, ValueError) as error:
                print(f"flwr run, attempt {attempt}: {str(error)[-300:]}", flush=True)
                time.sleep(3.0)
        raise SystemExit("flwr run did not work ten times in a row")

    def look(self) -> dict[str, float]:
        """What the live page says; empty while there is no ServerApp."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.live}/state.json", timeout=5) as page:
                return dict(json.load(page))
        except (OSError, ValueError):
            return {}

    def supervise(self) -> None:
        """Start a ServerApp that ended by itself again, as a supervisor would; note what memory everybody holds."""
        now = time.monotonic()
        if now - self._measured > 10.0:
            self._measured = now
            held = [resident(self.federation.processes(name)) for name in ("flwr-serverapp", "flower-superlink")]
            self.memory.append([round((now - self._began) / 60, 2), *held])
        if now - self.server_started > CALM and not self.federation.processes("flwr-serverapp"):
            self.by_itself += 1
            self.start_server()

    def strike(self) -> None:
        """One fault, by chance."""
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        strike = getattr(self, "_" + kind.replace(" ", "_"))
        if strike(self.random.choice(self.nodes)):
            self.faults[kind] += 1
            arrivals = self.look().get("arrivals", "no")
            print(f"{time.strftime('%H:%M:%S')} {kind}; {arrivals} arrivals", flush=True)

    def _node_killed(self, node: int) -> bool:
        self.federation.kill_node(node)
        time.sleep(self.random.uniform(0.0, 2.0))
        self.federation.restart_node(node)
        return True

    def _executor_killed(self, node: int) -> bool:
        """And started again, as its unit file does."""
        self.federation.restart_executor(node)
        return True

    def _clientapp_killed(self, node: int) -> bool:
        """While it is at work, which is looked for during three seconds."""
        executor = self.federation.executor(node)
        path, until = Path(f"/proc/{executor}/task/{executor}/children"), time.monotonic() + 3.0
        while not (children := path.read_text().split()) and time.monotonic() < until:
            time.sleep(0.05)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        return bool(children)

    def _node_paused(self, node: int) -> bool:
        self.federation.signal_node(node, signal.SIGSTOP)
        time.sleep(self.random.uniform(1.0, 4.0))
        self.federation.signal_node(node, signal.SIGCONT)
        return True

    def _network_cut(self, node: int) -> bool:
        if not self._namespaces:
            return False
        self.cables[node].put(back=False)
        time.sleep(self.random.uniform(1.0, 8.0))
        self.cables[node].put(back=True)
        return True

    def _node_leaves_for_good(self, node: int) -> bool:
        if len(self.nodes) <= FEWEST:
            return False
        self.nodes.remove(node)
        self.federation.kill_node(node, self.random.choice((signal.SIGKILL, signal.SIGTERM)))
        return True

    def _node_joins_late(self, node: int) -> bool:
        if len(self.nodes) >= MOST:
            return False
        self.add_node()
        return True

    def _disk_full(self, node: int) -> bool:
        if not self._namespaces:
            return False
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        time.sleep(self.random.uniform(2.0, 6.0))
        filler.unlink()
        return True

    def _serverapp_killed(self, node: int) -> bool:
        servers = self.federation.processes("flwr-serverapp")
        if not servers or time.monotonic() - self.server_started < CALM:
            return False
        for server in servers:
            os.kill(server, signal.SIGKILL)
        self.start_server()
        return True

    def _superlink_killed(self, node: int) -> bool:
        """With its ServerApp, as when their machine dies."""
        if time.monotonic() - self.server_started < CALM:
            return False
        self.federation.kill_superlink()
        time.sleep(self.random.uniform(0.0, 3.0))
        self.federation.restart_superlink()
        self.start_server()
        return True

    def to_the_end(self, minutes: float) -> None:
        """Faults for so many minutes; then `flwr stop`, and a last life in peace."""
        for _ in range(FEWEST + 1):
            self.add_node()
        self.start_server()
        self._began = time.monotonic()
        while time.monotonic() < self._began + 60 * minutes:
            time.sleep(self.random.uniform(*PAUSE))
            self.supervise()
            if (self.out / "checkpoint").exists():
                self.strike()
        print("the last life", flush=True)
        until, said = time.monotonic() + LIMIT, self.look()
        with contextlib.suppress(AceflError):
            self.federation.flwr("stop", self.run, NAME)
        while self.federation.processes("flwr-serverapp") and time.monotonic() < until:
            time.sleep(1.0)
        self.seconds = float(said.get("time", time.monotonic() - self._began)) + CALM
        self.start_server()
        while not (self.out / "summary.json").exists():
            if time.monotonic() > until:
                raise SystemExit(f"stuck:\n{self.federation.log('superlink')[-6000:]}")
            time.sleep(2.0)
            self.supervise()

    def close(self) -> None:
        for cable in self.cables.values():
            cable.close()
        if self._namespaces:
            _do("umount", "--lazy", str(self.disk))


class Gradients:
    """What the nodes computed, as a task: client by client, so that not even rounding depends on who is beside it."""

    objective, batch_limit = "distance", 1

    def __init__(self, partitions: list[int]) -> None:
        sys.path.insert(0, str(APP))
        from flower_chaos import task  # type: ignore[import-not-found]

        self._task, self._partitions = task, partitions
        self.clients, self.samples = len(partitions), [1] * len(partitions)

    def describe(self) -> dict[str, Any]:
        return {"name": "flower-chaos", "clients": self.clients}

    def initial(self) -> Vector:
        start: Vector = self._task.start()
        return start

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        pairs = zip(clients, models, strict=True)
        return torch.stack([self._task.gradient(self._partitions[client], model) for client, model in pairs])

    def evaluate(self, model: Vector) -> Evaluation:
        return Evaluation({"distance": float(model.norm())})


def partitions(federation: Loopback, nodes: int) -> dict[str, int]:
    """Which data each node id had: a node without a key gets a new id whenever it starts."""
    found = {node: re.findall(r"SuperNode ID: (\d+)", federation.log(f"node-{node}")) for node in range(nodes)}
    return {node_id: node for node, ids in found.items() for node_id in ids}


def chaos(folder: Path, minutes: float, seed: int, method: str = METHOD) -> dict[str, Any]:
    """One federation's life, and what its books say."""
    namespaces = os.environ.get(INSIDE) == "1"
    host = "0.0.0.0" if namespaces else "127.0.0.1"  # in the namespace nobody else is there
    with Loopback(folder / "flower", secure=False, host=host, durable=True) as federation:
        life = Chaos(federation, folder, method, seed, namespaces)
        try:
            life.to_the_end(minutes)
            data = partitions(federation, life.all_nodes)
            shutil.copytree(life.out, folder / "record")
        finally:
            life.close()
    made = load(folder / "record")
    found = books(made, rules.parse(method), Gradients([data.get(node, 0) for node in made.config["nodes"]]))
    return {
        "method": method,
        "minutes": minutes,
        "faults": sum(life.faults.values()),
        "of these": dict(life.faults),
        "ServerApps that ended by themselves and were started again": life.by_itself,
        "network and disk": "namespaces and tmpfs" if namespaces else "left out: no namespaces here",
        **found,
        LOST: checkpoints_lost(life.lines),
        "memory, MB": _memory(life.memory),
    }


def _memory(samples: list[list[float]]) -> dict[str, Any]:
    """By fifths of the time, and some of what was measured: minute, ServerApp, SuperLink."""
    _, server, link = map(list, zip(*samples, strict=True))
    some = samples[:: max(1, len(samples) // 15)]
    return {"ServerApp, by fifths": by_fifths(server), "SuperLink, by fifths": by_fifths(link), "some": some}


def again_in_namespaces(tell: Callable[[str], None] = print) -> None:
    """This command once more, in namespaces of its own; returns where they cannot be made."""
    if INSIDE in os.environ:
        return
    os.environ[INSIDE] = "0"
    probe = subprocess.run(["unshare", "--net", "--mount", "ip", "link", "set", "lo", "up"], capture_output=True)
    if probe.returncode:
        tell("no namespaces can be made here: networks are not cut, and the disk does not fill up")
        return
    os.environ[INSIDE] = "1"
    command = 'ip link set lo up && exec "$@"'
    arguments = [sys.executable, "-m", "benchmarks.flower_chaos", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", "--net", "--mount", "sh", "-c", command, "sh", *arguments])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--method", action="append", help=f"may be given more than once; {METHOD}")
    options.add_argument("--keep", type=Path, help="a directory for logs and records")
    given = options.parse_args()
    again_in_namespaces()
    rows = []
    for number, method in enumerate(given.method or [METHOD]):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if given.keep is not None:
                folder = given.keep / str(number)
                folder.mkdir(parents=True)
            rows.append(chaos(folder, given.minutes, given.seed + number, method))
            print(json.dumps(rows[-1], indent=1), flush=True)
    name, fewest = ("flower_chaos", 200) if given.minutes >= 30 else ("flower_chaos_short", 1)
    report(name, "Chaos on a real SuperLink", rows, targets(rows, fewest))


if __name__ == "__main__":
    main()
