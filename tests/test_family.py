"""Why CA2FL is ahead of ACE: the page shows what is recorded, and a lasting error is what does not average out."""

from __future__ import annotations

import pytest
from experiments.ace.theory import family
from experiments.leaderboard.publish import filled

from acefl import ASGD, Scenario, Stop, simulate, tasks
from acefl.core.files import read_json


def test_the_page_shows_what_is_recorded() -> None:
    text = (family.HERE / "README.md").read_text(encoding="utf-8")
    assert filled(text, "family", family.tables(read_json(family.RESULTS))) == text


def test_an_error_lasts_that_does_not_average_out() -> None:
    def lasting(noise: float, clients: int) -> float:
        watch = family.LastingError(100)
        task = tasks.quadratic(clients=clients, dim=5, noise=noise, heterogeneity=0.0, seed=0)
        simulate(task, ASGD(), lr=1e-6, scenario=Scenario(), stop=Stop(arrivals=400), observers=[watch])
        assert [row["arrival"] for row in watch.records] == [100, 200, 300, 400]
        return sum(row["lasting"] for row in watch.records) / 4

    assert lasting(0.0, 1) < 1e-9
    assert lasting(1.0, 1) == pytest.approx(1 / 100, rel=0.8)  # the mean of 100 updates, each with a squared error of 1
