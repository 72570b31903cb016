"""A report of real nodes begins with what the slowest one got, where one is slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.report import headline, recorded


def first_sentence(folder: Path, *, spread: float, clock: str) -> str:
    """Of a simulated run, recorded as if its clients had been real ones where the clock is `wall`."""
    task = tasks.digits(clients=4, alpha=0.5, seed=0)
    simulate(
        task,
        ACE(),
        lr=0.1,
        scenario=Scenario(delay=1.0, spread=spread, slow="last"),
        stop=Stop(arrivals=80),
        out=folder,
    )
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["scenario"]["clock"] = clock
    path.write_text(json.dumps(config))
    return headline.sentences(recorded.load(folder))[0]


def test_it_says_how_slow_it_was_what_it_sent_and_how_the_model_fits_it(tmp_path: Path) -> None:
    said = first_sentence(tmp_path / "run", spread=10.0, clock="wall")
    clients = recorded.load(tmp_path / "run").runs[0].clients.set_index("client")
    assert said.startswith("The slowest node, client 3, took 10 s per task where the median node took ")
    assert f"; {clients['participation'][3]} of {clients['participation'].sum()} updates are its own" in said
    assert f"accuracy on its data is {clients['accuracy'][3]:.3f}" in said


@pytest.mark.parametrize(("spread", "clock"), [(1.0, "wall"), (10.0, "event")])
def test_equal_nodes_and_simulations_begin_with_the_result(tmp_path: Path, spread: float, clock: str) -> None:
    assert not first_sentence(tmp_path / "run", spread=spread, clock=clock).startswith("The slowest")
