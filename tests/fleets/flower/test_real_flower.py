"""The example app on real Flower processes: a SuperLink and SuperNodes on loopback, and the simulation runtime.

Nothing here depends on how fast the machine is, but for generous limits.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from acefl import load, report
from acefl.fleets.flower.loopback import Loopback, free_port

pytestmark = pytest.mark.flower

APP = Path(__file__).parents[3] / "examples" / "flower-digits"
LONGEST = 900.0  # seconds, on a machine that is very busy with other things


def watch(port: int, until: Any) -> dict[str, Any]:
    """The first state of the live page that fits."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state.json", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
            if until(state):
                return state
        except OSError:
            pass
        time.sleep(0.5)
    pytest.fail("the run did not get there in time")


def test_a_federation_with_tls_goes_on_when_a_node_leaves_and_takes_it_in_again(tmp_path: Path) -> None:
    """Its nodes fork ClientApps by `python -m acefl.flower.executor`, which learns what the app imports."""
    live, updates = free_port(), 8
    with Loopback(tmp_path / "flower") as federation:
        for node in range(2):
            federation.start_node(node, f"partition-id={node} num-partitions=2")
        settings = {"nodes": 2, "arrivals": updates, "surveys": 0, "uplink": "int8", "live": live}
        run = federation.run(APP, {**settings, "out": str(tmp_path / "out")})
        before = watch(live, lambda state: sum(client["arrivals"] > 0 for client in state["clients"]) == 2)
        federation.kill_node(1, signal.SIGTERM)
        watch(live, lambda state: state["arrivals"] > before["arrivals"])
        federation.restart_node(1)
        status = federation.wait(run, LONGEST)
        assert status == "finished:completed", federation.log("superlink")
        assert "imported for the next one" in federation.log("executor-0"), "the messages went elsewhere"
    made = load(tmp_path / "out")
    assert made.arrivals >= updates
    assert len(made.participation) == 2, "a node that came back was taken for another one"
    assert min(made.participation) > 0
    assert made.config["scenario"]["uplink"] == "int8"
    dim = made.model.numel()
    assert (made.events["uplink"] < 1.1 * dim + 1000).all(), "int8 updates weigh more than a byte per number"
    assert (made.events["downlink"] >= 4 * dim).all()
    assert made.history["accuracy"].iloc[-1] > made.history["accuracy"].iloc[0]
    assert "ACED" in report.build(tmp_path / "out").read_text("utf-8")
    assert not federation._stragglers()


def test_the_simulation_runtime_and_gradients_held_by_clients(tmp_path: Path) -> None:
    """The same app on simulated nodes; what clients keep in their Flower context is there at their next message."""
    with Loopback(tmp_path / "flower", secure=False, simulated_nodes=3) as federation:
        method = "ACE(variant='client-held', warmup='seen')"
        run = federation.run(
            APP, {"method": method, "nodes": 3, "arrivals": 12, "surveys": 1, "out": str(tmp_path / "out")}
        )
        status = federation.wait(run, LONGEST)
        assert status == "finished:completed", federation.log("superlink")
    made = load(tmp_path / "out")
    assert made.arrivals >= 12
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
    assert made.history["client_loss"].notna().any(), "no node judged the model on its own data"
    assert not made.refused, "some client did not find the gradient it had kept"
