"""The one loop: budgets, who gets a model when, and that a run is what its arrivals make of the server."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from acefl import ACE, ACED, ASGD, Arrival, FedBuff, InvalidInput, Lost, NothingInFlight, Scenario, Server, Stop
from acefl.core.loop import run
from acefl.core.rule import Method
from acefl.core.types import Vector
from acefl.fleets.scripted import ScriptedFleet
from acefl.fleets.simulated import simulated_fleet

DIM = 3


def work(client: int, visit: int, model: Vector) -> Vector:
    return model - float(client) + 0.1 * visit


def server_of(method: Method, clients: int, **more: Any) -> Server:
    return Server(torch.ones(DIM), method.build(clients, torch.ones(DIM)), 0.5, clients, **more)


class Noted(ScriptedFleet):
    """Notes every dispatch."""

    def __init__(self, script: Any) -> None:
        super().__init__(script, work)
        self.dispatches: list[tuple[int, bool]] = []

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int]:
        self.dispatches.append((version, newcomers_only))
        return super().dispatch(model, version, newcomers_only=newcomers_only)


FOREVER = Stop(arrivals=10**9)


def test_a_run_is_what_its_arrivals_make_of_the_server() -> None:
    """Each update is computed from the model of the version named in the script, as it was when that was current."""
    script = [[(0, 0)], [(1, 0), (0, 1)], [(1, 0)], [(0, 2), (1, 2)]]
    server = server_of(ASGD(), 2)
    steps = list(run(server, ScriptedFleet(script, work), Stop(arrivals=6)))
    models, visits = [torch.ones(DIM)], [0, 0]
    for turn in script:
        updates = []
        for client, version in turn:
            updates.append(work(client, visits[client], models[version]))
            visits[client] += 1
        models.append(models[-1] - 0.5 * torch.stack(updates).mean(0))
    torch.testing.assert_close(server.model, models[-1])
    assert [(step.arrivals, step.version, step.time, step.stepped) for step in steps] == [
        (1, 1, 1.0, True),
        (3, 2, 2.0, True),
        (4, 3, 3.0, True),
        (6, 4, 4.0, True),
    ]


def test_a_turn_without_a_step_says_so() -> None:
    steps = list(run(server_of(FedBuff(buffer=2), 1), Noted([[(0, 0)], [], [(0, 0)]]), Stop(steps=1)))
    assert [(step.arrivals, step.version, step.stepped) for step in steps] == [
        (1, 0, False),
        (1, 0, False),
        (2, 1, True),
    ]


@pytest.mark.parametrize(
    ("stop", "turns"),
    [
        (Stop(arrivals=4), 4),
        (Stop(steps=2), 4),
        (Stop(time=3.0), 3),
        (Stop(time=2.5), 3),
        (Stop(arrivals=4, time=2.0), 2),
        (Stop(arrivals=4, steps=1, time=9.0), 2),
    ],
)
def test_the_budget_that_is_spent_first_ends_the_run(stop: Stop, turns: int) -> None:
    fleet = Noted([[(0, 0)]] * 9)
    assert len(list(run(server_of(FedBuff(buffer=2), 1), fleet, stop))) == turns
    assert len(fleet.dispatches) == turns, "one at the start, one after each turn but the last"


def test_a_batch_may_overshoot_a_budget_of_arrivals_but_nothing_more_is_taken_in() -> None:
    server = server_of(ASGD(), 3)
    list(run(server, Noted([[(0, 0)], [(0, 0), (1, 0), (2, 0)], [(0, 0)]]), Stop(arrivals=2)))
    assert server.accepted == 4


def test_refused_arrivals_spend_no_budget() -> None:
    fleet = Noted([[(5, 0)], [(0, 0)], [(7, 0)], [(0, 0)], [(0, 0)]])
    server = server_of(ASGD(), 1)
    assert len(list(run(server, fleet, Stop(arrivals=2)))) == 4
    assert server.refused == {"unknown-client": 2}


def test_a_server_whose_budget_is_spent_does_nothing_and_one_with_a_larger_budget_goes_on() -> None:
    fleet = Noted([[(0, 0)]] * 9)
    server = server_of(ASGD(), 1)
    list(run(server, fleet, Stop(arrivals=3)))
    model = server.model.clone()
    assert list(run(server, fleet, Stop(arrivals=3))) == []
    assert torch.equal(server.model, model)
    assert len(fleet.dispatches) == 3
    assert [step.arrivals for step in run(server, fleet, Stop(arrivals=5))] == [4, 5]


def test_nobody_gets_a_second_model_while_the_first_round_lasts() -> None:
    fleet = Noted([[(2, 0)], [(0, 0)], [(1, 0)], [(0, 1)]])
    list(run(server_of(ACE(), 3), fleet, Stop(arrivals=4)))
    assert fleet.dispatches == [(0, True), (0, True), (0, True), (1, False)]
    fleet = Noted([[(2, 0)], [(0, 1)]])
    list(run(server_of(ACE(warmup="seen"), 3), fleet, Stop(arrivals=2)))
    assert fleet.dispatches == [(0, False), (1, False)]


def test_the_first_round_goes_on_without_who_was_lost() -> None:
    server = server_of(ACE(), 3)
    fleet = Noted([[(2, 0)], [Lost(1, 9)], [(0, 0)], [(1, 1)]])
    list(run(server, fleet, Stop(arrivals=3)))
    assert server.version == 2
    assert fleet.dispatches == [(0, True), (0, True), (0, True), (1, False)]


class Pull:
    """A task of a few numbers; what it sends on chosen visits is not finite."""

    samples = (1,) * 4
    objective, batch_limit, clients = "loss", 64, 4

    def __init__(self, broken: int = 0, client: int = 1) -> None:
        self.left, self.client = broken, client

    def initial(self) -> Vector:
        return torch.ones(DIM)

    def updates(self, models: Vector, clients: list[int], keys: list[int]) -> Vector:
        rows = []
        for model, client, key in zip(models, clients, keys, strict=True):
            row = model - float(client) + (key % 1000) / 1000
            if client == self.client and self.left:
                self.left -= 1
                row = row * math.nan
            rows.append(row)
        return torch.stack(rows)


def simulated(method: Method, task: Any, scenario: Scenario, stop: Stop) -> tuple[Server, Any, list[Arrival]]:
    heard: list[Arrival] = []
    server = server_of(method, 4, on_arrival=lambda arrival, reason: heard.append(arrival))
    fleet = simulated_fleet(task, scenario, seed=3)
    for _ in run(server, fleet, stop):
        pass
    return server, fleet, heard


@pytest.mark.parametrize("concurrency", [None, 1, 2])
@pytest.mark.parametrize("clock", ["event", "tick"])
@pytest.mark.parametrize("method", [ACE(), ACED(tau=3)])
def test_with_wait_the_first_arrivals_are_everybody_once_on_the_first_model(
    method: Method, clock: str, concurrency: int | None
) -> None:
    scenario = Scenario(clock=clock, spread=50.0, delay=3.0, concurrency=concurrency)
    _, _, heard = simulated(method, Pull(), scenario, Stop(arrivals=30))
    assert sorted(arrival.client for arrival in heard[:4]) == [0, 1, 2, 3]
    assert {arrival.trained_on for arrival in heard[:4]} == {0}
    assert all(arrival.trained_on > 0 for arrival in heard[4:])


def test_with_seen_a_fast_client_does_not_wait_for_a_slow_one() -> None:
    _, _, heard = simulated(ACE(warmup="seen"), Pull(), Scenario(spread=500.0), Stop(arrivals=30))
    assert [arrival.client for arrival in heard].count(0) > 5
    assert 3 not in {arrival.client for arrival in heard[:4]}


@pytest.mark.parametrize("broken", [1, 2])
def test_a_client_whose_first_update_is_refused_does_not_stop_the_federation(broken: int) -> None:
    """Nobody works on what the first round waits for, so it ends without; the client counts once it sends numbers."""
    server, _, _ = simulated(ACE(), Pull(broken=broken), Scenario(), Stop(arrivals=40))
    assert server.refused == {"non-finite": broken}
    assert min(server.participation) > 0
    assert set(server.rule.state_dict()["seen"]) == {0, 1, 2, 3}
    assert server.model.isfinite().all()


@pytest.mark.parametrize("method", [ACE(), ASGD()])
def test_a_run_without_anybody_at_work_ends_in_an_error_that_says_so(method: Method) -> None:
    with pytest.raises(NothingInFlight, match="the script has ended"):
        list(run(server_of(method, 3), Noted([[(0, 0)]]), FOREVER))


def test_a_run_that_is_stopped_and_goes_on_is_the_run_that_was_not() -> None:
    scenario, stop = Scenario(spread=5.0, concurrency=3), Stop(arrivals=40)
    whole, _, _ = simulated(ACED(tau=3), Pull(), scenario, stop)
    server, fleet, _ = simulated(ACED(tau=3), Pull(), scenario, Stop(arrivals=17))
    resumed, again = server_of(ACED(tau=3), 4), simulated_fleet(Pull(), scenario, seed=3)
    resumed.load_state_dict(server.state_dict())
    again.load_state_dict(fleet.state_dict())
    for _ in run(resumed, again, stop):
        pass
    assert torch.equal(resumed.model, whole.model)
    assert resumed.participation == whole.participation


def test_clients_get_their_model_before_anybody_looks_at_the_step() -> None:
    fleet = Noted([[(0, 0)]] * 4)
    turns = run(server_of(ASGD(), 1), fleet, Stop(arrivals=4))
    for made in itertools.islice(turns, 3):
        assert len(fleet.dispatches) == made.arrivals + 1


def test_a_script_that_names_a_version_nobody_was_sent_is_refused() -> None:
    with pytest.raises(InvalidInput, match="client 0 trained on version 2; allowed: 0 to 1"):
        list(run(server_of(ASGD(), 1), ScriptedFleet([[(0, 0)], [(0, 2)]], work), FOREVER))
