"""The family against its formula, and its corners against the methods they are, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import CalibratedOracle
from tests.rules.schedules import Come, Event, History, Join, Leave, histories, long_history, update, walk

from acefl import ACE, ASGD, CA2FL, MIFA, Arrival, Calibrated, FedBuff, InvalidInput
from acefl.core.rule import Method
from acefl.rules.settings import ENCODINGS, WARMUPS


def against_oracle(history: History, method: Calibrated) -> int:
    oracle = CalibratedOracle(history.clients, history.dim, method.c, method.beta, method.buffer, method.warmup)
    return walk(history, lambda: method.build(history.clients, torch.zeros(history.dim)), oracle)


methods = st.builds(
    Calibrated,
    c=st.sampled_from(("share", 0.1, 1.0, 1.7)),
    beta=st.sampled_from((0.0, 0.25, 0.9, 1.0)),
    buffer=st.integers(1, 6),
    table=st.sampled_from(ENCODINGS),
    warmup=st.sampled_from((*WARMUPS, "zeros")),
)


@settings(max_examples=80)
@given(histories(elastic=True), methods)
def test_every_step_is_that_of_the_formula(history: History, method: Calibrated) -> None:
    if method.table != "fp32" and method.beta < 1:
        method = Calibrated(method.c, method.beta, method.buffer, warmup=method.warmup)  # rows and buffer differ
    against_oracle(history, method)


@pytest.mark.parametrize("table", ENCODINGS)
def test_a_large_model(table: str) -> None:
    method = Calibrated(c=0.5, buffer=2, table=table, warmup="zeros")
    assert against_oracle(long_history(Leave(1), Join(1.0), [Come(3, None)]), method) == 6


@pytest.mark.parametrize("warmup", ["wait", "seen", "zeros"])
@pytest.mark.parametrize("c", ["share", 0.4])
def test_a_client_that_leaves_is_taken_out_of_the_mean_once(c: float | str, warmup: str) -> None:
    """In the buffer, between two steps, twice, before it ever came; and it comes back."""
    come = [[Come(client, 0)] for client in range(4)]
    events: list[Event] = [*come, come[0], Leave(0), come[1], come[2], come[3], Leave(1), Leave(1), come[2], come[3]]
    events += [come[0], come[3], Join(1.0), Leave(4), come[2], come[1], come[1], come[3], come[2]]
    assert against_oracle(History(4, 3, events), Calibrated(c=c, buffer=2, warmup=warmup)) >= 7


CORNERS: list[tuple[Method, Method]] = [
    *((Calibrated("share", warmup=warmup, table=table), ACE(warmup=warmup, table=table))
      for warmup in WARMUPS for table in ENCODINGS),
    *((Calibrated("share", buffer=3, warmup=warmup), MIFA(3, warmup=warmup)) for warmup in WARMUPS),
    *((Calibrated(1.0, buffer=buffer, warmup="zeros", table=table), CA2FL(buffer, table))
      for buffer in (1, 3) for table in ENCODINGS),
    *((Calibrated(1.0, 0.0, buffer), FedBuff(buffer)) for buffer in (1, 3, 7)),
    (Calibrated(1.0, 0.0), ASGD()),
]  # fmt: skip


@settings(max_examples=120)
@given(st.sampled_from(CORNERS), histories(elastic=True), st.sets(st.integers(0, 30), max_size=6))
def test_a_corner_is_its_method_bit_for_bit(corner: tuple[Method, Method], history: History, lost: set[int]) -> None:
    """Whoever joins (with the weight of everybody), leaves, is lost or reloaded: same moments, same bits."""
    left, right = (list(_directions(history, method, lost)) for method in corner)
    assert [step for step, _ in left] == [step for step, _ in right]
    for (_, one), (_, two) in zip(left, right, strict=True):
        assert torch.equal(one, two)


def _directions(history: History, method: Method, lost: set[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """The number of the event, and the direction of the step that it led to."""
    clients, version, task = history.clients, 0, 0
    rule = method.build(clients, torch.zeros(history.dim))
    for number, event in enumerate(history.events):
        if number % 4 == 3:
            rule, old = method.build(history.clients, torch.zeros(history.dim)), rule
            rule.load_state_dict(old.state_dict())
        if isinstance(event, Leave):
            rule.leave(event.client % clients)
        elif isinstance(event, Join):
            clients += 1
            rule.join(clients)
        elif number in lost:
            rule.lost(event[0].client % clients)
        else:
            due = False
            for come in event:
                task += 1
                trained_on = max(0, version - (come.age or 0))
                sends = update(history.seed, task, history.dim)
                due |= rule.absorb(Arrival(come.client % clients, sends, trained_on, version, task))
            if due:
                yield number, rule.direction().clone()
                rule.clear()
                version += 1


def test_c_and_beta_are_no_idle_settings() -> None:
    history = History(3, 0, [[Come(client, 0)] for client in (0, 1, 2, 0, 1, 0, 2)])
    found = [list(_directions(history, Calibrated(c, beta), set()))[-1][1] for c in (0.3, 1.0) for beta in (0.5, 1.0)]
    assert all(not torch.equal(one, two) for place, one in enumerate(found) for two in found[:place])


def test_without_memory_there_is_no_table() -> None:
    rule = Calibrated(beta=0.0).build(1000, torch.zeros(1000))
    assert rule.table is None  # type: ignore[attr-defined]


def test_wrong_settings_are_refused_by_name() -> None:
    for wrong in ({"c": 0.0}, {"c": "auto"}, {"c": float("nan")}, {"beta": 1.1}, {"buffer": 0}, {"warmup": "never"}):
        [(name, value)] = wrong.items()
        with pytest.raises(InvalidInput, match=f"{name} is {value!r}"):
            Calibrated(**wrong)  # type: ignore[arg-type]
