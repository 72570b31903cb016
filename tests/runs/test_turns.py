"""Turns that are known before they come and are taken in one go end in the same run as one turn after another.

Same means bit for bit: model, history, log of arrivals, clients, and whatever comes after a checkpoint in the middle.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import resumable

from acefl import ACE, ACED, ASGD, CA2FL, Every, FedBuff, Run, Scenario, Stop, resume, simulate, tasks
from acefl.core.errors import Interrupted
from acefl.core.kernels import patient
from acefl.core.optimizers import Momentum
from acefl.core.rule import Method
from acefl.probes import Participation
from acefl.runs.observers import Observer
from acefl.runs.simulate import simulation
from acefl.runs.training import Training, never

PASSES: dict[str, Method] = {
    "ASGD": ASGD(),
    "FedBuff": FedBuff(buffer=3),
    "FedBuff-sqrt": FedBuff(buffer=2, staleness="sqrt"),
    "DelayAdaptiveASGD": resumable.RULES["DelayAdaptiveASGD"],
    "ACE": ACE(),
    "ACE-seen": ACE(warmup="seen", weights="samples", table="bf16"),
    "ACED": ACED(tau=4, table="int8"),  # most rows come and go, and at times there is none
    "ACED-model": ACED(tau=6, freshness="model"),
    "CA2FL": CA2FL(buffer=3, table="int8"),
}
stops = st.one_of(
    st.integers(1, 70).map(lambda n: Stop(arrivals=n)),
    st.integers(1, 30).map(lambda n: Stop(steps=n)),
    st.floats(0.5, 30.0).map(lambda t: Stop(time=t)),
    st.tuples(st.integers(1, 70), st.integers(1, 30), st.floats(0.5, 30.0)).map(lambda all_: Stop(*all_)),
)


def begin(rule: Method, **other: Any) -> Training:
    usual: dict[str, Any] = {
        "lr": 0.05,
        "scenario": Scenario(spread=8.0),
        "stop": Stop(arrivals=resumable.ARRIVALS),
        "seed": 5,
        "evaluations": 6,
    }
    task = other.pop("task", None) or tasks.build(resumable.TASK)
    return simulation(task, rule, **(usual | other))


def one_by_one(training: Training) -> tuple[Run, int]:
    """The run, and how often the loop handed out a step."""
    looks = sum(1 for _ in training.advance())
    return training.finish(), looks


def in_one_go(training: Training) -> tuple[Run, int]:
    looks = sum(1 for _ in training.advance(never))
    return training.finish(), looks


def check_same(make: Callable[[], Training]) -> tuple[int, int]:
    """How many looks it took, each way."""
    (expected, often), (run, seldom) = one_by_one(make()), in_one_go(make())
    assert resumable.fingerprint(run) == resumable.fingerprint(expected)
    return often, seldom


@pytest.mark.parametrize("rule", resumable.RULES)
def test_every_method_ends_the_same(rule: str, tmp_path: Path) -> None:
    often, seldom = check_same(lambda: resumable.build(rule, "event", tmp_path))
    assert often == resumable.ARRIVALS
    # Clients send changes or models, or wait for each other.
    alone = "client-held", "FedAsync", "FedFa", "AREA", "FedAvg", "FedAdam"
    assert seldom == often if any(word in rule for word in alone) else seldom < often


@pytest.mark.parametrize("scenario", [name for name in resumable.SCENARIOS if name != "event"])
def test_where_others_than_the_arriving_client_may_start_every_turn_is_by_itself(scenario: str, tmp_path: Path) -> None:
    for rule in ("ASGD", "ACE-int8-memory", "CA2FL-fp32-memory"):
        often, seldom = check_same(lambda rule=rule: resumable.build(rule, scenario, tmp_path))  # type: ignore[misc]
        assert seldom == often


@settings(max_examples=60)
@given(
    rule=st.sampled_from(sorted(PASSES)),
    stop=stops,
    evaluations=st.integers(1, 70),
    spread=st.sampled_from([1.0, 8.0, 60.0]),
    seed=st.integers(0, 1000),
)
def test_wherever_it_is_looked_at_and_ends(rule: str, stop: Stop, evaluations: int, spread: float, seed: int) -> None:
    scenario = Scenario(spread=spread)
    check_same(lambda: begin(PASSES[rule], stop=stop, evaluations=evaluations, scenario=scenario, seed=seed))


@pytest.mark.parametrize("table", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("rule", ["ACE", "ACED", "CA2FL"])
def test_compiled_kernels_change_nothing(rule: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: Any = dataclasses.replace(PASSES[rule], table=table)  # type: ignore[type-var]
    task = tasks.quadratic(clients=9, dim=700, noise=0.3, seed=1)
    expected, _ = one_by_one(begin(chosen, task=task))
    for name in ("PATIENCE", "PATIENCE_LOSSLESS"):
        monkeypatch.setattr(patient, name, 2)
    monkeypatch.setattr(patient, "_made", Counter())
    for way in (one_by_one, in_one_go):
        assert resumable.fingerprint(way(begin(chosen, task=task))[0]) == resumable.fingerprint(expected)


@pytest.mark.parametrize("dim", [1, 511, 1100])
@pytest.mark.parametrize("buffer", [1, 2, 5, 100])
@pytest.mark.parametrize("staleness", ["none", "sqrt"])
def test_a_compiled_buffer_changes_nothing(
    staleness: str, buffer: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.quadratic(clients=9, dim=dim, noise=0.3, seed=1)
    chosen = FedBuff(buffer=buffer, staleness=staleness)
    plain = begin(chosen, task=task)
    expected, _ = one_by_one(plain)
    monkeypatch.setattr(patient, "PATIENCE_LOSSLESS", 2)
    compiled = begin(chosen, task=task)
    assert compiled.server.rule._loop is not None  # type: ignore[attr-defined]
    run, looks = in_one_go(compiled)
    assert looks < run.arrivals
    assert resumable.fingerprint(run) == resumable.fingerprint(expected)
    assert torch.equal(compiled.server.direction, plain.server.direction)
    ours, theirs = (training.server.rule.state_dict() for training in (compiled, plain))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[name]))


@pytest.mark.parametrize("rule", PASSES)
@pytest.mark.parametrize("at", [1, 8, 23, 59])
def test_a_state_taken_in_the_middle_goes_on_either_way(rule: str, at: int) -> None:
    expected, _ = one_by_one(begin(PASSES[rule]))
    training = begin(PASSES[rule])
    for step, _ in training.advance(lambda: at):
        if step.arrivals >= at:
            break
    assert step.arrivals == at
    state = training.state_dict()
    for way in (one_by_one, in_one_go):
        resumed = begin(PASSES[rule])
        resumed.load_state_dict(state)
        assert resumable.fingerprint(way(resumed)[0]) == resumable.fingerprint(expected)


def test_checkpoints_are_where_they_were(tmp_path: Path) -> None:
    """A run that is killed between two checkpoints and resumed is the run that was not."""
    expected, _ = one_by_one(begin(ASGD()))
    arguments: dict[str, Any] = {"lr": 0.05, "scenario": Scenario(spread=8.0), "stop": Stop(arrivals=60), "seed": 5}
    saved = []

    class Killed(Observer):
        each_turn = False

        def __init__(self, at: float) -> None:
            self._at = at

        def evaluated(self, row: dict[str, float]) -> None:
            if row["arrival"] >= self._at:
                raise Interrupted

        def state_dict(self) -> dict[str, Any]:
            saved.append(None)
            return {}

    out = tmp_path / "run"
    task = tasks.build(resumable.TASK)
    watch = [Killed(at=40)]
    with pytest.raises(Interrupted):
        simulate(task, ASGD(), out=out, checkpoint=Every(arrivals=9), evaluations=6, observers=watch, **arguments)
    assert len(saved) == 4  # at 9, 18, 27 and 36 arrivals
    run = resume(out, observers=[Killed(at=math.inf)])
    assert resumable.fingerprint(run) == resumable.fingerprint(expected)


class Spoiled:
    """A task some of whose updates are no numbers."""

    def __init__(self) -> None:
        self._task = tasks.build(resumable.TASK)

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        updates = self._task.updates(models, clients, keys)
        for row, key in enumerate(keys):
            if key % 17 == 0:
                updates[row, key % 5] = torch.nan
        return updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


@pytest.mark.parametrize("rule", PASSES)
def test_what_is_no_number_is_refused_either_way(rule: str) -> None:
    often, seldom = check_same(lambda: begin(PASSES[rule], task=Spoiled(), stop=Stop(arrivals=200)))
    assert seldom < often
    run, _ = in_one_go(begin(PASSES[rule], task=Spoiled(), stop=Stop(arrivals=200)))
    assert run.refused["non-finite"] > 2


def test_an_optimizer_steps_the_same() -> None:
    often, seldom = check_same(lambda: begin(FedBuff(buffer=2), optimizer=Momentum(beta=0.5)))
    assert seldom < often


@pytest.mark.parametrize("rule", PASSES)
def test_who_follows_the_log_need_not_hear_of_every_turn(rule: str) -> None:
    often, seldom = check_same(lambda: begin(PASSES[rule], observers=[Participation()]))
    assert seldom < often


def test_who_has_to_hear_of_every_turn_does() -> None:
    class Counting(Observer):
        turns = 0

        def stepped(self, step: Any, server: Any) -> None:
            self.turns += 1

    counting = Counting()
    run, looks = in_one_go(begin(ASGD(), observers=[counting]))
    assert counting.turns == looks == run.arrivals


def test_the_last_direction_is_there_after_turns_in_one_go() -> None:
    for rule in PASSES.values():
        slow, fast = begin(rule, stop=Stop(arrivals=41)), begin(rule, stop=Stop(arrivals=41))
        one_by_one(slow), in_one_go(fast)
        assert torch.equal(slow.server.direction, fast.server.direction)
