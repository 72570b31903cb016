"""A rule is told who was sent a model, by every fleet: ACED's clocks restart when its docstring says they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.rules.oracles import ACEDOracle

from acefl import ACED, Arrival, FedBuff, Lost, Scenario, Server, Step, Stop, simulate, tasks
from acefl.core.loop import run
from acefl.fleets.scripted import ScriptedFleet
from acefl.runs.replay import replay

CLIENTS, TAU = 10, 6
TASK = tasks.quadratic(clients=CLIENTS, dim=4, noise=0.5, seed=1)
SCENARIOS = {
    "busy": Scenario(spread=10.0),
    "three at a time": Scenario(spread=4.0, concurrency=3),
    "one at a time": Scenario(concurrency=1),
    "tick": Scenario(clock="tick", delay=3.0, concurrency=5),
    "leaving and coming back": Scenario(spread=3.0, concurrency=4, dropout=0.4, dropout_at=0.3, rejoin_at=0.6),
}


class Follow:
    """Holds every active set and every step against the algorithm, which is told of each dispatch as it happens."""

    def __init__(self, tau: int = TAU, wait: bool = True) -> None:
        self.oracle = ACEDOracle([1.0] * CLIENTS, TASK.initial().numel(), tau=tau, freshness="dispatch", wait=wait)
        self.sent: list[tuple[Sequence[int], int]] = []
        self.steps = self.out = 0

    def arrived(self, arrival: Arrival, reason: str) -> None:
        for clients, version in self.sent:
            self.oracle.dispatched(clients, version)
        self.sent.clear()
        self.oracle.absorb(arrival.client, arrival.update.double().numpy(), arrival.trained_on, arrival.version)

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self.sent.append((list(clients), version))

    def stepped(self, step: Step, server: Server) -> None:
        if step.stepped:
            rule: Any = server.rule
            active = self.oracle.active(step.version - 1)
            assert rule.active == set(active)
            expected = self.oracle.step(step.version - 1)
            np.testing.assert_allclose(rule.direction().double().numpy(), expected, rtol=0, atol=1e-4)
            self.steps += 1
            self.out += len(active) < CLIENTS

    def evaluated(self, row: dict[str, float]) -> None:
        pass


@pytest.mark.parametrize("warmup", ["wait", "seen"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_client_counts_until_tau_steps_after_it_was_last_sent_a_model(scenario: Scenario, warmup: str) -> None:
    follow = Follow(wait=warmup == "wait")
    method = ACED(tau=TAU, warmup=warmup)
    simulate(TASK, method, lr=0.05, scenario=scenario, stop=Stop(arrivals=400), evaluations=2, observers=[follow])
    assert follow.steps > 150
    assert follow.out > 20, "somebody is left out now and then, or this law says nothing"


def test_a_fleet_that_sends_nobody_anything_leaves_the_rule_to_its_assumption() -> None:
    """Under the sampled clock the rule takes it that whoever arrives is sent the next model."""
    follow = Follow()
    scenario = Scenario(clock="sampled", delay=4.0)
    simulate(TASK, ACED(tau=TAU), lr=0.05, scenario=scenario, stop=Stop(arrivals=300), observers=[follow])
    assert not follow.oracle.is_told
    assert follow.out > 20


@pytest.mark.parametrize("name", ["busy", "three at a time", "one at a time", "tick"])
def test_a_replay_tells_the_same_and_gives_the_same_model(name: str) -> None:
    method = ACED(tau=TAU)
    made = simulate(TASK, method, lr=0.05, scenario=SCENARIOS[name], stop=Stop(arrivals=300), evaluations=2)
    assert torch.equal(replay(made, method).model, made.model)


def test_another_methods_record_is_replayed_with_its_dispatches() -> None:
    made = simulate(TASK, FedBuff(buffer=3), lr=0.05, scenario=SCENARIOS["three at a time"], stop=Stop(arrivals=90))
    first = replay(made, ACED(tau=2))
    assert torch.equal(replay(first, ACED(tau=2)).model, first.model)


def work(client: int, visit: int, model: torch.Tensor) -> torch.Tensor:
    return model - float(client) + 0.1 * visit


def test_a_script_sends_a_model_to_who_is_free_when_its_version_is_there() -> None:
    script = [[(0, 0)], [(1, 0), (0, 1)], [Lost(2, 9)], [(1, 2)], [(0, 2)], [(2, 0)]]
    told: list[tuple[list[int], int]] = []
    model = torch.ones(3)
    server = Server(
        model,
        ACED(warmup="seen").build(3, model),
        0.5,
        3,
        on_dispatch=lambda clients, version: told.append((list(clients), version)),
    )
    for _ in run(server, ScriptedFleet(script, work, {1: 4}), Stop(arrivals=6)):
        pass
    assert told == [([0, 1, 2], 0), ([0], 1), ([0, 1], 2), ([1], 4)]
    assert server.last_sent == {0: 2, 1: 4, 2: 0}


def test_what_a_rule_was_told_is_part_of_its_state() -> None:
    rule: Any = ACED(tau=2, warmup="seen").build(2, torch.zeros(1))
    one = torch.ones(1)
    rule.dispatched([0, 1], 0)
    rule.absorb(Arrival(0, one, 0, 0, 0))
    rule.dispatched([0], 1)
    again: Any = ACED(tau=2, warmup="seen").build(2, torch.zeros(1))
    again.load_state_dict(rule.state_dict())
    for version in (1, 2, 3, 4):
        for either in (rule, again):
            either.absorb(Arrival(1, one, version, version, version))
        assert rule.active == again.active == ({0, 1} if version <= 3 else {1})


def test_the_rule_of_the_last_step_is_not_changed_by_a_dispatch() -> None:
    """Observers look at a step after the next models went out."""
    rule: Any = ACED(tau=1, warmup="seen").build(2, torch.zeros(2))
    units = torch.eye(2)
    rule.dispatched([0, 1], 0)
    rule.absorb(Arrival(0, units[0], 0, 0, 0))
    for version in (1, 2):
        rule.absorb(Arrival(1, units[1], version, version, version))
    assert rule.direction().tolist() == [0.0, 1.0]
    rule.dispatched([0], 3)
    assert rule.direction().tolist() == [0.0, 1.0]
    rule.absorb(Arrival(1, units[1], 3, 3, 3))
    assert rule.direction().tolist() == [0.5, 0.5]
