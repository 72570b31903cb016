"""The weights that the probe finds are those of the paper's formulas, for every method and for rules it never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.probes.dense import NAMES, ORACLES, Dense
from tests.rules.oracles import Oracle

from acefl import ASGD, AceflError, FedBuff, InvalidInput, Scenario, Server, Step, Stop, simulate, tasks
from acefl.core.rule import Method, Rule
from acefl.core.types import Arrival, Vector
from acefl.probes.shadow import Shadow, Weighed
from acefl.runs.training import Training

ARRIVALS = 150
TASK = tasks.quadratic(clients=6, dim=5, seed=3)
SCENARIOS = [
    Scenario(spread=20.0),
    Scenario(clock="tick", delay=2.0, spread=4.0),
    Scenario(clock="sampled", delay=3.0, spread=4.0),
    Scenario(spread=5.0, concurrency=3),
]


class Follower:
    """Keeps what a shadow says about every step."""

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots
        self.steps: list[list[Weighed]] = []

    def started(self, run: Training) -> None:
        self.shadow = Shadow(run.method, run.task.clients, run.task.samples, run.server.model, self._slots)

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if not reason:
            self.shadow.absorb(arrival)

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self.shadow.dispatched(clients, version)

    def lost(self, client: int) -> None:
        self.shadow.lost(client)

    def stepped(self, step: Step, server: Server) -> None:
        if step.stepped:
            self.shadow.step()
            self.steps.append(self.shadow.weights(server.direction))

    def evaluated(self, row: dict[str, float]) -> None:
        pass


def follow(rule: Method, *others: Dense, slots: int | None = None, scenario: Scenario = SCENARIOS[0]) -> Follower:
    follower = Follower(slots)
    stop = Stop(arrivals=ARRIVALS)
    simulate(TASK, rule, lr=0.05, scenario=scenario, stop=stop, evaluations=1, observers=[follower, *others])
    return follower


@pytest.mark.parametrize("scenario", SCENARIOS, ids=["event", "tick", "sampled", "concurrency"])
@pytest.mark.parametrize(("rule", "oracle"), ORACLES, ids=NAMES)
def test_weights_are_those_of_the_formulas_although_slots_are_used_again(
    rule: Method, oracle: Callable[[int, int], Oracle], scenario: Scenario
) -> None:
    """A few dozen slots serve 150 arrivals, so each is used many times; the oracle never uses one again."""
    dense = Dense(oracle, 2 * ARRIVALS)
    found = follow(rule, dense, slots=24, scenario=scenario).steps
    assert len(found) == len(dense.weights) > ARRIVALS / 10
    for step, weighed in enumerate(found):
        expected = dense.by_pair(step)
        merged: dict[tuple[int, int], float] = {}
        for part in weighed:
            pair = (part.client, part.trained_on)
            merged[pair] = merged.get(pair, 0.0) + part.weight
        assert set(merged) >= set(expected)
        for pair, weight in merged.items():
            assert weight == pytest.approx(expected.get(pair, 0.0), abs=1e-6)


@dataclass(frozen=True)
class Momentum(Method):
    """A rule that acefl does not have: an average over all arrivals, older ones counting less and less."""

    keep: float = 0.5

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return MomentumRule(self.keep, like)


class MomentumRule(Rule):
    saved: ClassVar[tuple[str, ...]] = ("mean",)

    def __init__(self, keep: float, like: Vector) -> None:
        self.keep, self.mean = keep, torch.zeros_like(like)

    def absorb(self, arrival: Arrival) -> bool:
        self.mean.mul_(self.keep).add_(arrival.update, alpha=1 - self.keep)
        return True

    def direction(self) -> Vector:
        return self.mean


def test_a_users_own_rule_is_followed() -> None:
    found = follow(Momentum(), slots=60).steps
    assert len(found) == ARRIVALS
    for weighed in found[50:]:
        weights = sorted((part.weight for part in weighed), reverse=True)
        assert weights[:8] == pytest.approx([0.5 ** (age + 1) for age in range(8)], rel=1e-4)


class Clipped(MomentumRule):
    """Not linear: what is large is cut off."""

    def direction(self) -> Vector:
        return self.mean.clamp(-0.1, 0.1)


class Forgetful(MomentumRule):
    """Linear, but its state_dict does not say what it holds."""

    saved = ()


@pytest.mark.parametrize("rule", [Clipped, Forgetful])
def test_a_rule_that_the_weights_cannot_explain_is_refused(rule: type[MomentumRule]) -> None:
    class Settings(Momentum):
        def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
            return rule(0.9, like)

    with pytest.raises(AceflError, match="do not explain the update"):
        follow(Settings(), slots=60)


def test_too_few_slots_are_named() -> None:
    with pytest.raises(InvalidInput, match="more than 8 contributions; allow more by slots="):
        follow(FedBuff(buffer=20), slots=8)


def test_a_shadow_goes_on_from_its_state() -> None:
    whole = follow(ASGD()).shadow
    again = Shadow(ASGD(), TASK.clients, TASK.samples, TASK.initial())
    again.load_state_dict(whole.state_dict())
    update = torch.ones(5)
    for shadow in (whole, again):
        shadow.absorb(Arrival(2, update, 7, 9, ARRIVALS + 1))
        shadow.step()
    assert whole.weights(update) == again.weights(update) == [Weighed(2, 7, 1.0, True)]
