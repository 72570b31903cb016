"""Every registered method through one table of laws, and the laws that tie methods to each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.schedules import DIM, History, histories, turns_of

from acefl import (
    ACE,
    ACED,
    AREA,
    ASGD,
    CA2FL,
    FADAS,
    MIFA,
    Arrival,
    Calibrated,
    Clipped,
    DelayAdaptiveASGD,
    DelayedNesterov,
    FedAdam,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFa,
    FedStaleWeight,
    MaleniaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
    RobustACE,
)
from acefl.core.rule import Method, Upload
from acefl.rules import METHODS, label
from acefl.rules.ace import ClientMemory
from acefl.testing import LAWS, Law

SETTINGS: list[Method] = [
    ACE(),
    ACE(warmup="seen"),
    ACE(table="int8", weights="samples"),
    ACE(table="bf16", warmup="seen"),
    ACE(variant="direct", weights="samples"),
    ACE(variant="direct", warmup="seen"),
    ACE(variant="client-held", weights="samples"),
    ACE(variant="client-held", warmup="seen"),
    ACED(),
    ACED(tau=1, warmup="seen"),
    ACED(tau=3, table="int8"),
    ACED(tau=4, freshness="model", weights="samples"),
    ACED(tau=7, freshness="model", table="bf16", warmup="seen"),
    CA2FL(buffer=3),
    CA2FL(buffer=1, table="int8"),
    CA2FL(table="bf16"),
    FedBuff(),
    FedBuff(buffer=3, staleness="sqrt"),
    ASGD(),
    DelayAdaptiveASGD(),
    DelayAdaptiveASGD(threshold=2),
    RobustACE(),
    RobustACE(aggregate="trimmed", trim=0.3, warmup="seen"),
    RingmasterASGD(),
    RingmasterASGD(threshold=2),
    RingleaderASGD(),
    MaleniaSGD(),
    MaleniaSGD(batch=1.2),
    MIFA(buffer=3),
    MIFA(table="int8", warmup="seen"),
    FedStaleWeight(buffer=3),
    FedAsync(),
    FedAsync(staleness="constant", alpha=0.9),
    FedAsync(staleness="hinge", a=2.0, b=1.0),
    FedFa(window=3),
    FedFa(),
    AREA(),
    AREA(buffer=3, table="int8"),
    FADAS(buffer=3),
    FADAS(buffer=2, threshold=1),
    FedAvg(),
    FedAvg(cohort=2, weights="samples"),
    FedAdam(cohort=3),
    Calibrated(),
    Calibrated(c="share", beta=0.5, buffer=3, warmup="seen"),
    Calibrated(c=1.5, buffer=2, table="int8", warmup="zeros"),
    Calibrated(c=0.5, beta=0.0, buffer=3),
    RescaledASGD(),
    DelayedNesterov(),
    DelayedNesterov(period=2, beta=0.5, c=0.3),
    Clipped(),
    Clipped(ACE(table="int8"), threshold=5.0),
    Clipped(FedAvg(), threshold=5.0),
    Clipped(FADAS(buffer=2, threshold=1), threshold=5.0),
]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("method", SETTINGS, ids=label)
def test_law(law: Law, method: Method) -> None:
    law(method)


def test_no_registered_method_is_left_out() -> None:
    assert {type(method) for method in SETTINGS} == set(METHODS.values())


def agree(history: History, one: Method, two: Method) -> None:
    """Both methods step at the same moments and in the same directions, up to float32 rounding."""
    left, right = (_directions(history, method) for method in (one, two))
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=5e-4)  # the largest updates are about 50


def _directions(history: History, method: Method) -> list[torch.Tensor]:
    rule = method.build(history.clients, torch.zeros(DIM), [2 + client for client in range(history.clients)])
    memory = ClientMemory() if method.uploads is Upload.CHANGE else None
    found, version = [], 0
    for turn in turns_of(history):
        due = False
        for client, age, gradient, task in turn:
            sends = gradient if memory is None else memory.difference(client, gradient)
            due |= rule.absorb(Arrival(client, sends, max(0, version - age), version, task))
        if due:
            found.append(rule.direction().clone())
            rule.clear()
            version += 1
    return found


common = {"weights": st.sampled_from(("uniform", "samples")), "warmup": st.sampled_from(("wait", "seen"))}


@settings(max_examples=40)
@given(histories(), st.fixed_dictionaries(common), st.sampled_from(("incremental", "client-held")))
def test_the_variants_of_ace_agree(history: History, same: dict[str, Any], variant: str) -> None:
    agree(history, ACE(variant=variant, **same), ACE(variant="direct", **same))


@settings(max_examples=40)
@given(histories(), st.fixed_dictionaries(common), st.sampled_from(("dispatch", "model")))
def test_aced_with_a_huge_tau_is_ace(history: History, same: dict[str, Any], freshness: str) -> None:
    agree(history, ACED(tau=10**9, freshness=freshness, **same), ACE(**same))


@settings(max_examples=30)
@given(histories())
def test_fedbuff_with_a_buffer_of_one_is_asgd(history: History) -> None:
    agree(history, FedBuff(buffer=1), ASGD())


@settings(max_examples=30)
@given(histories())
def test_delay_adaptive_with_a_huge_threshold_is_asgd(history: History) -> None:
    agree(history, DelayAdaptiveASGD(threshold=10**9), ASGD())


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(0, 99))
def test_one_round_of_everybody_is_the_plain_mean(clients: int, rounds: int) -> None:
    """With a buffer of n, FedBuff and CA²FL are synchronous: each full round of all clients steps on its plain mean.

    For CA²FL: h + (1/n) sum_i (g_i - h_i) = (1/n) sum_i g_i, since h is the mean of the h_i. ACE agrees wherever its
    table has just been filled by the same round.
    """
    random = torch.Generator().manual_seed(rounds)
    like = torch.zeros(DIM)
    buffered = [FedBuff(buffer=clients).build(clients, like), CA2FL(buffer=clients).build(clients, like)]
    ace = ACE(variant="direct", warmup="seen").build(clients, like)
    for step in range(3):
        gradients = torch.randn(clients, DIM, generator=random)
        for place, client in enumerate(torch.randperm(clients, generator=random).tolist()):
            arrival = Arrival(client, gradients[client], step, step, step * clients + place)
            assert [rule.absorb(arrival) for rule in buffered] == [place == clients - 1] * 2
            ace.absorb(arrival)
        for rule in [*buffered, ace]:
            torch.testing.assert_close(rule.direction(), gradients.mean(0))
            rule.clear()


def test_ca2fl_with_a_buffer_of_one_applies_the_whole_change_where_ace_applies_its_share() -> None:
    """The paper's M = 1 limit: v = h + (new - old) against u = u_before + (new - old) / n."""
    random = torch.Generator().manual_seed(0)
    like = torch.zeros(DIM)
    ca2fl, ace = CA2FL(buffer=1).build(4, like), ACE(warmup="seen").build(4, like)
    last = torch.zeros(4, DIM)
    for task in range(20):
        client = task % 4
        new = torch.randn(DIM, generator=random)
        arrival = Arrival(client, new, 0, task, task)
        assert ca2fl.absorb(arrival)
        assert ace.absorb(arrival)
        h, change = last.mean(0), new - last[client]
        torch.testing.assert_close(ca2fl.direction(), h + change)
        ca2fl.clear()
        if task >= 4:
            torch.testing.assert_close(ace.direction(), h + change / 4)
        last[client] = new
