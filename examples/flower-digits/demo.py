"""A Flower federation on this machine, with TLS and node authentication, in which things go wrong on purpose.

Four nodes train with ACED. One works ten times slower than the others. One is killed in the middle, noticed, and comes
back. At the end there is a report, which begins with what the slow node got:
`python examples/flower-digits/demo.py [--out DIR]`.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from acefl.core.errors import AceflError
from acefl.fleets.flower.loopback import ASKS_EVERY, Loopback, free_port
from acefl.report import headline, recorded

HERE = Path(__file__).parent
NODES, SLOW, KILLED = 4, 3, 2
WORK = 1.5  # seconds per message of a node that is not slow
LEASE = 75.0  # seconds before the SuperLink lets a node that crashed come back; a supervisor would just try again


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: leave by the way that ends all processes
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--out", type=Path, default=Path("demo-flower"), help="directory of the record and its report")
    options.add_argument("--arrivals", type=int, default=60, help="end after so many updates")
    options.add_argument("--minutes", type=float, default=30.0, help="give up after so long")
    given = options.parse_args()
    out, live = given.out.resolve(), free_port()
    until = time.monotonic() + 60 * given.minutes
    with Loopback(out.with_name(out.name + "-processes")) as federation:
        say(f"SuperLink on 127.0.0.1:{federation.port} with TLS and node authentication")
        settings = [f"partition-id={n} num-partitions={NODES} slowness={10 if n == SLOW else 1}" for n in range(NODES)]
        with ThreadPoolExecutor(2) as pool:  # registering a key takes seconds
            list(pool.map(federation.start_node, range(NODES), settings))
        say(
            f"{NODES} SuperNodes with registered keys; node {SLOW} works ten times slower; "
            f"live page http://127.0.0.1:{live}/"
        )
        run = federation.run(
            HERE,
            {
                "arrivals": given.arrivals,
                "nodes": NODES,
                "work-seconds": WORK,
                "surveys": 1,
                "out": str(out),
                "live": live,
            },
        )
        wait_for(federation, run, live, given.arrivals // 5, until)
        federation.kill_node(KILLED)
        killed = time.monotonic()
        say(f"node {KILLED} killed; training goes on")
        wait_for(federation, run, live, given.arrivals // 2, until, at_least=killed + LEASE)
        federation.restart_node(KILLED)
        say(f"node {KILLED} started again")
        status = federation.wait(run, max(1.0, until - time.monotonic()))
    if status != "finished:completed":
        print(f"the run ended as {status}; logs are in {federation.folder}", file=sys.stderr)
        return 1
    for sentence in headline.sentences(recorded.load(out)):
        say(sentence)
    print(f"The report: {out / 'report.html'}")
    return 0


def wait_for(federation: Loopback, run: str, port: int, arrivals: int, until: float, at_least: float = 0.0) -> None:
    """Until so many updates have been taken in, and until `at_least`; says how it goes."""
    shown, heard = -1, time.monotonic()
    while time.monotonic() < until:
        state = look(port)
        if state["arrivals"]:
            heard = time.monotonic()
        elif time.monotonic() - heard > ASKS_EVERY:
            if federation.is_over(run):
                raise SystemExit(f"the run ended before its time; logs are in {federation.folder}")
            heard = time.monotonic()
        if state["arrivals"] // 10 != shown // 10:
            shown = state["arrivals"]
            counts = [client["arrivals"] for client in state["clients"]]
            say(f"{shown} arrivals, by client {counts}, mean staleness {state['mean_staleness'] or 0:.1f}")
        if state["arrivals"] >= arrivals and time.monotonic() >= at_least:
            return
        time.sleep(1.0)
    raise SystemExit("the federation is too slow; see --minutes")


def look(port: int) -> dict[str, Any]:
    """What the live page shows; zeros until the ServerApp runs."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state.json", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {"arrivals": 0, "clients": [], "mean_staleness": 0.0}


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AceflError as error:
        sys.exit(str(error))
