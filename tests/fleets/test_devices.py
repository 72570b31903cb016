"""Speeds of real devices: what was published, repeated over clients, and tied to data as one says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acefl import ASGD, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.fleets.devices import DEVICES, SIGMA, task_times
from acefl.fleets.scenario import SPEEDS, Durations


def means(clients: int, seed: int = 0, **settings: object) -> list[float]:
    return Durations(Scenario(**settings), clients, seed).mean  # type: ignore[arg-type]


def test_edge_flowertune_is_repeated_over_clients() -> None:
    times = task_times("edge-flowertune", 16)
    assert times == sorted([*task_times("edge-flowertune", 8)] * 2)
    assert all(11 <= time <= 14 for time in times[:6])
    assert all(170 <= time <= 174 for time in times[6:])


@pytest.mark.parametrize("clients", [2, 10, 333, 1000])
def test_phones_are_lognormal_over_a_41_fold_range(clients: int) -> None:
    times = task_times("phones", clients)
    assert times[0] == pytest.approx(1.0)
    assert times[-1] == pytest.approx(4310 / 105)
    if clients >= 333:
        logs = np.log(times)
        assert logs.std() == pytest.approx(SIGMA, rel=0.02)
        assert logs.mean() == pytest.approx(math.log(4310 / 105) / 2, rel=1e-3)
        assert np.mean(np.abs(logs - logs.mean()) < SIGMA) == pytest.approx(0.683, abs=0.01)


@pytest.mark.parametrize("settings", [{"spread": 30.0}, *({"devices": name} for name in DEVICES)], ids=str)
def test_coupling_changes_who_is_slow_and_nothing_else(settings: dict[str, object]) -> None:
    last, random, first = (means(20, slow=slow, **settings) for slow in SPEEDS)
    assert last == sorted(last) == first[::-1] == sorted(random)
    assert random not in (last, first)
    assert random == means(20, slow="random", **settings)  # keyed by the seed alone
    assert random != means(20, seed=1, slow="random", **settings)


def test_delay_is_the_unit_of_a_profile_and_spread_has_no_effect() -> None:
    assert means(5, devices="phones", delay=2.0) == pytest.approx([2 * time for time in means(5, devices="phones")])
    scenario = Scenario(devices="phones", spread=7.0)
    assert scenario.warnings() == ["spread=7.0: no effect beside devices, which say how long clients take"]
    assert means(5, devices="phones", spread=7.0) == means(5, devices="phones")


def test_devices_are_recorded_and_others_refused() -> None:
    scenario = Scenario(devices="phones", slow="first")
    run = simulate(tasks.quadratic(6, 3), ASGD(), lr=0.05, scenario=scenario, stop=Stop(arrivals=60))
    assert run.config["scenario"]["devices"] == "phones"
    assert run.participation[-1] == max(run.participation)
    with pytest.raises(InvalidInput, match="devices is 'tablets'; allowed: edge-flowertune, phones"):
        Scenario(devices="tablets")
    with pytest.raises(InvalidInput, match="trace and devices are given; allowed: one of them"):
        Scenario(devices="phones", trace="t.csv")
