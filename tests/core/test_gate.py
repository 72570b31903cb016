"""The gate: every reason to refuse an arrival, and what a refusal leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import (
    ACE,
    ASGD,
    Arrival,
    Every,
    InvalidInput,
    Scenario,
    Server,
    Stop,
    attacked,
    load,
    report,
    resume,
    simulate,
    tasks,
)
from acefl.core.gate import REASONS, Gate, NormLimit
from acefl.core.kernels import LONG, is_finite
from acefl.core.rule import Method
from acefl.rules import METHODS
from acefl.testing import _equal

VERSION = 5
GOOD = Arrival(client=1, update=torch.ones(3), trained_on=3, version=VERSION, task=7)

BAD: dict[str, list[Callable[[Arrival], Arrival]]] = {
    "unknown-client": [lambda a: replace(a, client=4), lambda a: replace(a, client=-1)],
    "wrong-shape": [
        lambda a: replace(a, update=torch.ones(4)),
        lambda a: replace(a, update=torch.ones(3, 1)),
        lambda a: replace(a, update=torch.ones(())),
    ],
    "wrong-dtype": [
        lambda a: replace(a, update=torch.ones(3, dtype=torch.float64)),
        lambda a: replace(a, update=torch.ones(3, dtype=torch.int64)),
    ],
    "future-version": [
        lambda a: replace(a, trained_on=VERSION + 1),
        lambda a: replace(a, trained_on=-1),
        lambda a: replace(a, version=VERSION + 1, trained_on=VERSION + 1),
        lambda a: replace(a, version=VERSION - 1),
    ],
    "non-finite": [
        lambda a: replace(a, update=torch.tensor([1.0, math.nan, 1.0])),
        lambda a: replace(a, update=torch.tensor([1.0, math.inf, 1.0])),
        lambda a: replace(a, update=torch.tensor([-math.inf, math.inf, 1.0])),
    ],
}


def gate() -> Gate:
    return Gate(4, torch.zeros(3))


def test_a_good_arrival_passes_once() -> None:
    door = gate()
    assert door.refusal(GOOD, VERSION) == ""
    assert door.refusal(GOOD, VERSION) == "duplicate"


@pytest.mark.parametrize(("reason", "spoil"), [(reason, spoil) for reason, ways in BAD.items() for spoil in ways])
def test_each_reason(reason: str, spoil: Callable[[Arrival], Arrival]) -> None:
    door = gate()
    assert door.refusal(spoil(GOOD), VERSION) == reason
    assert door.refusal(GOOD, VERSION) == "", "a refused arrival does not count as the answer to its task"


def test_every_reason_is_tested() -> None:
    assert {*BAD, "duplicate", "flooding", "norm-out-of-line"} == set(REASONS)


def test_an_older_task_of_the_same_client_is_a_duplicate_and_that_of_another_is_not() -> None:
    door = gate()
    assert door.refusal(GOOD, VERSION) == ""
    assert door.refusal(replace(GOOD, task=3), VERSION) == "duplicate"
    assert door.refusal(replace(GOOD, task=3, client=2), VERSION) == ""
    assert door.refusal(replace(GOOD, task=8), VERSION) == ""


def test_answered_tasks_survive_a_checkpoint() -> None:
    door, resumed = gate(), gate()
    door.refusal(GOOD, VERSION)
    resumed.load_state_dict(door.state_dict())
    assert resumed.refusal(GOOD, VERSION) == "duplicate"
    assert resumed.refusal(replace(GOOD, client=0, task=0), VERSION) == ""


def test_numbers_are_not_looked_at_when_told_so() -> None:
    door = Gate(4, torch.zeros(3), finite=False)
    assert door.refusal(replace(GOOD, update=torch.full((3,), math.nan)), VERSION) == ""


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_is_finite_means_every_entry_is(numbers: list[float]) -> None:
    assert is_finite(torch.tensor(numbers)) is all(map(math.isfinite, numbers))


def test_a_sum_that_overflows_is_no_reason_to_refuse() -> None:
    assert is_finite(torch.full((8,), 3e38))
    assert is_finite(torch.full((LONG,), 3e38))


@pytest.mark.parametrize("size", [LONG, 1_200_001])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_one_bad_entry_anywhere_in_a_long_vector_is_seen(size: int, bad: float) -> None:
    long = torch.ones(size)
    assert is_finite(long)
    for place in (0, size // 2, size - 1):
        long[place] = bad
        assert not is_finite(long)
        long[place] = 1.0


# --- norms ------------------------------------------------------------------------------------------------------------


def sent(client: int, norm: float, task: int = 0) -> Arrival:
    return Arrival(client, torch.tensor([0.0, norm, 0.0]), trained_on=0, version=0, task=task)


def test_a_norm_far_out_of_line_is_refused_once_there_is_a_line() -> None:
    door = Gate(4, torch.zeros(3), norm=NormLimit(factor=10.0, history=3))
    assert [door.refusal(sent(client, 1.0), 0) for client in (0, 1)] == ["", ""]
    assert door.refusal(sent(2, 1e6), 0) == "", "two clients are no history"
    assert door.refusal(sent(3, 10.1), 0) == "norm-out-of-line"
    assert door.refusal(sent(3, 9.9), 0) == "", "refused, its task is still open"


@given(
    honest=st.lists(st.floats(1.0, 2.0), min_size=3, max_size=8),
    hostile=st.lists(st.floats(0.0, 1e30), max_size=40),
    action=st.sampled_from(("refuse", "clip")),
)
def test_fewer_than_half_cannot_move_the_limit_however_often_they_send(
    honest: list[float], hostile: list[float], action: str
) -> None:
    """Whatever the others send, an honest norm passes unchanged, and nothing ten times the largest honest one does."""
    bad = (len(honest) - 1) // 2
    door = Gate(len(honest) + bad, torch.zeros(3), norm=NormLimit(10.0, action, history=1))
    for client, norm in enumerate(honest):
        assert door.refusal(sent(client, norm), 0) == ""
        door.shortened(sent(client, norm))
    for task, norm in enumerate(hostile):
        arrival = sent(len(honest) + task % max(bad, 1), norm, task) if bad else sent(0, honest[0], task + 1)
        if not door.refusal(arrival, 0):
            assert float(door.shortened(arrival).update.norm()) <= 20.001
    again = sent(0, honest[0], 1000)
    assert door.refusal(again, 0) == ""
    assert door.shortened(again) is again


def test_clipping_keeps_the_way_and_cuts_the_length() -> None:
    door = Gate(2, torch.zeros(3), norm=NormLimit(factor=2.0, action="clip", history=1))
    for arrival in (sent(0, 1.0), sent(1, -8.0)):
        assert door.refusal(arrival, 0) == ""
        if arrival.client == 0:
            assert door.shortened(arrival) is arrival
    cut = door.shortened(sent(1, -8.0))
    torch.testing.assert_close(cut.update, torch.tensor([0.0, -2.0, 0.0]))
    assert cut.update.dtype == torch.float32


def test_where_half_of_the_clients_send_nothing_there_is_no_line() -> None:
    door = Gate(2, torch.zeros(3), norm=NormLimit(history=1))
    assert [door.refusal(sent(0, 0.0), 0), door.refusal(sent(1, 5.0), 0)] == ["", ""]


@pytest.mark.parametrize(
    "settings",
    [
        *({"factor": factor} for factor in (0.5, math.inf, math.nan, "10")),
        *({"history": history} for history in (0, "10")),
        {"action": "drop"},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(settings))} is .*; allowed: "):
        NormLimit(**settings)
    with pytest.raises(InvalidInput, match="^flood is 1; allowed: "):
        Gate(2, torch.zeros(3), flood=1)


# --- flooding ---------------------------------------------------------------------------------------------------------


def test_a_flooding_client_is_looked_at_every_nth_time_and_can_come_back() -> None:
    door = Gate(4, torch.zeros(3), flood=3)
    bad = replace(GOOD, update=torch.full((3,), math.nan))
    reasons = [door.refusal(bad, VERSION) for _ in range(8)]
    assert reasons == ["non-finite"] * 4 + ["flooding"] * 2 + ["non-finite", "flooding"]
    assert door.refusal(replace(GOOD, client=2), VERSION) == "", "nobody else pays for it"
    assert door.refusal(GOOD, VERSION) == "flooding"
    assert door.refusal(GOOD, VERSION) == "", "its turn has come, and it is good"
    assert door.refusal(replace(GOOD, task=8), VERSION) == "", "it is trusted as anybody again"


# --- refusals leave nothing behind ------------------------------------------------------------------------------------

CLIENTS = 5
EVERY_METHOD: list[Method] = [method() for method in METHODS.values()]


def strict_server(method: Method) -> Server:
    like = torch.zeros(3)
    norm = NormLimit(factor=4.0, history=2)
    return Server(like, method.build(CLIENTS, like, [1] * CLIENTS), 0.1, CLIENTS, gate=gate_with(like, norm))


def gate_with(like: torch.Tensor, norm: NormLimit) -> Gate:
    return Gate(CLIENTS, like, norm=norm, flood=2)


SPOILERS: list[Callable[[Arrival], Arrival]] = [
    lambda a: a,
    lambda a: replace(a, update=a.update * 1e4),
    *(way for ways in BAD.values() for way in ways),
]


@settings(max_examples=60)
@given(
    st.sampled_from(EVERY_METHOD),
    st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 2 * len(SPOILERS))), max_size=60),
)
def test_a_run_is_that_of_its_accepted_arrivals_alone(method: Method, script: list[tuple[int, int]]) -> None:
    """With every check on, whatever is refused, for whatever reason, the same run without it ends in the same state."""
    mixed, good = strict_server(method), strict_server(method)
    for task, (client, how) in enumerate([*((client, 0) for client in range(CLIENTS)), *script]):
        update = torch.sin(torch.arange(3) + client + task) + 1.5
        arrival = Arrival(client, update, max(0, mixed.version - client), mixed.version, task)
        arrival = SPOILERS[how](arrival) if how < len(SPOILERS) else arrival
        before = mixed.accepted
        mixed.handle([arrival])
        if mixed.accepted > before:
            good.handle([arrival])
    one, two = mixed.state_dict(), good.state_dict()
    assert not good.refused
    assert sum(mixed.refused.values()) + mixed.accepted == CLIENTS + len(script)
    for state in (one, two):
        del state["refused"], state["gate"]["refused_in_a_row"]
    assert _equal(one, two)


def test_whose_arrivals_were_refused_is_recorded_and_in_the_report(tmp_path: Path) -> None:
    task = attacked(tasks.digits(clients=5, seed=0), "scaling", fraction=1.0, strength=1e6)
    hostile, task.hostile = 4, frozenset([4])  # the slowest: by then the gate knows what is usual
    limit, scenario = NormLimit(factor=10.0, history=3), Scenario(spread=30.0)
    where = tmp_path / "run"
    run = simulate(task, ASGD(), lr=0.01, scenario=scenario, stop=Stop(arrivals=100), norm_limit=limit, out=where)
    count = run.refused["norm-out-of-line"]
    assert run.refused_by_client == {hostile: {"norm-out-of-line": count}}
    assert load(where).refused_by_client == run.refused_by_client
    page = report.build(where).read_text(encoding="utf-8")
    assert f"client {hostile}: {count} norm-out-of-line" in page


def test_refusals_are_counted_per_client_in_bounded_memory_and_survive_a_checkpoint() -> None:
    server = strict_server(ACE(warmup="seen"))
    server.handle([sent(0, 1.0)])
    for stranger in range(5, 50):
        server.handle([sent(stranger, 1.0)])
    server.handle([replace(sent(0, 1.0), version=server.version)])
    assert server.refused == {"unknown-client": 45, "duplicate": 1}
    assert server.refused_by_client == {-1: {"unknown-client": 45}, 0: {"duplicate": 1}}
    resumed = strict_server(ACE(warmup="seen"))
    resumed.load_state_dict(json_and_back(server.state_dict()))
    assert (resumed.refused, resumed.refused_by_client) == (server.refused, server.refused_by_client)
    assert _equal(resumed.state_dict(), server.state_dict())


def json_and_back(state: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in state.items() if key not in ("model", "rule")}
    return {**state, **json.loads(json.dumps(plain))}


# --- in the simulator -------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"lr": 0.1, "scenario": Scenario(spread=3.0), "stop": Stop(arrivals=60), "evaluations": 3}


def test_a_limit_nobody_exceeds_changes_nothing_and_one_that_binds_is_kept_by_a_resumed_run(tmp_path: Path) -> None:
    task = tasks.quadratic(clients=6, dim=5, heterogeneity=3.0)
    free = simulate(task, ACE(), **RUN)
    wide = simulate(task, ACE(), norm_limit=NormLimit(1e6, "clip"), **RUN)
    assert torch.equal(free.model, wide.model)
    tight = simulate(task, ACE(), norm_limit=NormLimit(1.0, "clip"), **RUN)
    assert not torch.equal(free.model, tight.model)

    class PowerCut(Exception):
        pass

    def cut(done: float, *_: object) -> None:
        if done > 0.5:
            raise PowerCut

    with pytest.raises(PowerCut):
        simulate(
            task,
            ACE(),
            norm_limit=NormLimit(1.0, "clip"),
            out=tmp_path / "run",
            checkpoint=Every(arrivals=10),
            progress=cut,
            **RUN,
        )
    assert torch.equal(resume(tmp_path / "run").model, tight.model)


def test_changes_of_a_sum_cannot_be_limited() -> None:
    with pytest.raises(InvalidInput, match="whose clients send changes"):
        simulate(tasks.quadratic(clients=3, dim=2), ACE(variant="client-held"), norm_limit=NormLimit(), **RUN)
