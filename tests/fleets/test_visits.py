"""Visits from a table: they arrive in its order under every method, each on the model that was there when it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from acefl import (
    ACE,
    ASGD,
    CA2FL,
    Every,
    FedAvg,
    FedBuff,
    InvalidInput,
    Scenario,
    Stop,
    compare,
    resume,
    simulate,
    tasks,
)
from acefl.core.rule import Method
from acefl.runs.replay import replay
from acefl.tasks.base import Task

RULES = [ACE(), ACE(warmup="seen"), ACE(variant="client-held"), CA2FL(buffer=4), FedBuff(buffer=4), ASGD()]
CLIENTS = 6


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.quadratic(clients=CLIENTS, dim=4, heterogeneity=2.0, noise=0.5, seed=2)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Visits in whole minutes, so that some begin or end together, and some take no time at all."""
    draw = np.random.default_rng(5)
    rows: list[tuple[int, int, int]] = []
    for client in range(CLIENTS):
        time = 0
        for _ in range(20):
            start = time + int(draw.integers(1, 12 * (client + 1)))
            time = start + int(draw.integers(0, 15))
            rows.append((client, start, time))
    return pd.DataFrame(rows, columns=["client", "start", "end"])


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_arrivals_come_in_the_order_of_the_visits(task: Task, table: pd.DataFrame, rule: Method) -> None:
    run = simulate(task, rule, lr=0.02, scenario=Scenario(visits=table), evaluations=2)
    expected = table.sort_values(["end", "start"], kind="stable")
    assert run.arrivals == len(table)
    assert run.events["client"].tolist() == expected["client"].tolist()
    assert run.events["time"].tolist() == expected["end"].tolist()
    assert "ended" not in run.config
    assert torch.equal(replay(run, rule).model, run.model)


def test_a_visit_trains_on_the_model_of_all_arrivals_before_it_began(task: Task, table: pd.DataFrame) -> None:
    """ASGD steps at every arrival, so that a version counts them; and a dense oracle gives the model itself."""
    run = simulate(task, ASGD(), lr=0.02, scenario=Scenario(visits=table), evaluations=1, seed=3)
    visits = table.sort_values(["end", "start"], kind="stable").to_numpy()
    before = [sum(visits[:place, 2] <= start) for place, (_, start, _) in enumerate(visits)]
    assert run.events["trained_on"].tolist() == before
    assert max(place - known for place, known in enumerate(before)) >= 2  # some visits do overlap
    staleness = float((run.events["version"] - run.events["trained_on"]).mean())
    assert Scenario(visits=table).mean_staleness(CLIENTS) == pytest.approx(staleness)


def test_a_run_on_visits_resumes_where_it_was(task: Task, table: pd.DataFrame, tmp_path: Path) -> None:
    whole = simulate(task, FedBuff(buffer=3), lr=0.02, scenario=Scenario(visits=table), evaluations=2)

    class Killed(Exception):
        pass

    def kill(spent: float, whole: float, name: str) -> None:
        if spent > 0.5:
            raise Killed

    with pytest.raises(Killed):
        simulate(
            task,
            FedBuff(buffer=3),
            lr=0.02,
            scenario=Scenario(visits=table),
            evaluations=2,
            out=tmp_path / "run",
            checkpoint=Every(arrivals=20),
            progress=kill,
        )
    again = resume(tmp_path / "run", progress=False)
    assert torch.equal(again.model, whole.model)
    pd.testing.assert_frame_equal(again.events, whole.events)


def test_methods_are_compared_on_visits_and_a_page_says_so(table: pd.DataFrame, tmp_path: Path) -> None:
    task, methods = {"name": "quadratic", "clients": CLIENTS, "dim": 4}, [ACE(warmup="seen"), ASGD()]
    compare(task, methods, lr=0.02, scenario=Scenario(visits=table), stop=Stop(arrivals=60), out=tmp_path / "both")
    page = (tmp_path / "both" / "report.html").read_text()
    assert "120 of 6 clients" in page
    assert "clients came when they really did" in page


def test_who_comes_rarely_is_slow(task: Task) -> None:
    visits = [(0, 0, 1), (0, 2, 3), (0, 4, 5), (1, 6, 12), *((client, 1, 2) for client in range(2, CLIENTS))]
    run = simulate(task, ASGD(), lr=0.02, scenario=Scenario(visits=visits))
    assert [row["mean_time"] for row in run.clients] == [4.0, *[12.0] * 5]


@pytest.mark.parametrize(
    ("visits", "more", "wrong"),
    [
        ([], {}, "visits is empty; allowed: a table with columns client, start and end"),
        ([(0, 3, 2)], {}, "visits: '0' comes at 3 and ends at 2; allowed: 0 <= start <= end"),
        ([(0, 0, 5), (0, 4, 6)], {}, "visits: '0' comes at 4, before its last visit has ended"),
        ([(0, "noon", 5)], {}, "visits cannot be read; allowed: a table .* times as numbers"),
        (pd.DataFrame({"client": [0], "time": [3]}), {}, r"visits has columns \['client', 'time'\]; allowed"),
        (
            [(0, 0, 5)],
            {"spread": 2.0, "clock": "tick"},
            "clock=tick, spread=2.0 beside visits, .* allowed: visits alone",
        ),
    ],
)
def test_what_is_wrong_with_visits_is_one_line(visits: Any, more: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidInput, match=wrong):
        Scenario(visits=visits, **more)


def test_strangers_and_rounds_are_refused_and_a_larger_budget_ends_early(task: Task, table: pd.DataFrame) -> None:
    with pytest.raises(InvalidInput, match="visits names '9', who is no client; the task's are '0'"):
        simulate(task, ASGD(), lr=0.02, scenario=Scenario(visits=[(9, 0, 1)]))
    with pytest.raises(InvalidInput, match="decides who works when, which visits say already"):
        simulate(task, FedAvg(), lr=0.02, scenario=Scenario(visits=table))
    run = simulate(task, ASGD(), lr=0.02, scenario=Scenario(visits=table), stop=Stop(arrivals=1000))
    assert (run.arrivals, run.config["ended"]) == (120, "all 120 visits are over")
