"""Private updates: what is sent, and that the accounting agrees with closed forms and counts what was uploaded."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import ACE, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.core import rng as keyed
from acefl.tasks.privacy import epsilon, epsilon_per_client, privatise, privatised

pytest.importorskip("opacus")
DELTA = 1e-5
TASK = tasks.quadratic(clients=4, dim=400, heterogeneity=1.0)
KEYS = [keyed.key(5, client) for client in range(4)]


def exact_delta(eps: float, sigma: float) -> float:
    """The Gaussian mechanism's smallest delta (Balle and Wang 2018), sensitivity 1."""
    phi = NormalDist().cdf
    return phi(0.5 / sigma - eps * sigma) - math.exp(eps) * phi(-0.5 / sigma - eps * sigma)


@settings(max_examples=40)
@given(st.floats(0.5, 50.0), st.integers(1, 2000))
def test_between_the_exact_epsilon_and_the_textbook_one(noise: float, uploads: int) -> None:
    """u uploads are one Gaussian mechanism with noise / sqrt(u): never below what that costs, never above
    Mironov's conversion rho + 2 sqrt(rho log(1/delta)), but for the grid of orders."""
    found = epsilon(uploads, noise_multiplier=noise, delta=DELTA)
    rho = uploads / (2 * noise**2)
    assert found <= 1.02 * (rho + 2 * math.sqrt(rho * math.log(1 / DELTA)))
    if found < 500:  # beyond, exp overflows
        assert exact_delta(found, noise / math.sqrt(uploads)) <= DELTA * (1 + 1e-6)


@given(st.integers(0, 500), st.floats(0.3, 10.0))
def test_more_uploads_cost_more_more_noise_and_rarer_examples_less(uploads: int, noise: float) -> None:
    cost = epsilon(uploads, noise_multiplier=noise)
    assert epsilon(uploads + 1, noise_multiplier=noise) > cost
    assert epsilon(uploads, noise_multiplier=noise * 1.1) <= cost
    assert (cost == 0.0) == (uploads == 0)


def test_sampling_amplifies() -> None:
    assert epsilon(100, noise_multiplier=1.0, sample_rate=0.01) < 0.2 * epsilon(100, noise_multiplier=1.0)


def test_no_noise_is_no_privacy_unless_nothing_is_sent() -> None:
    assert epsilon(1, noise_multiplier=0.0) == math.inf
    assert epsilon(0, noise_multiplier=0.0) == 0.0


def test_without_noise_and_within_the_clip_nothing_changes_and_beyond_it_only_the_length() -> None:
    models = TASK.initial().expand(4, -1).contiguous()
    own = TASK.updates(models, [0, 1, 2, 3], KEYS)
    loose = privatised(TASK, clip=1e6, noise_multiplier=0.0).updates(models, [0, 1, 2, 3], KEYS)
    assert torch.equal(loose, own)
    tight = privatised(TASK, clip=0.5, noise_multiplier=0.0).updates(models, [0, 1, 2, 3], KEYS)
    torch.testing.assert_close(tight.norm(dim=1), torch.full((4,), 0.5))
    torch.testing.assert_close(torch.cosine_similarity(tight, own), torch.ones(4))


@pytest.mark.parametrize("real", [True, False])
def test_the_noise_has_the_size_that_is_accounted_for(real: bool) -> None:
    """1600 draws: the standard deviation is off by more than a tenth once in 10^7 runs (5.6 sigma)."""
    if real:
        sent = privatise(torch.zeros(1600), clip=2.0, noise_multiplier=3.0)
    else:
        models, clients = TASK.initial().expand(4, -1).contiguous(), [0, 1, 2, 3]
        noisy, bare = (privatised(TASK, clip=2.0, noise_multiplier=noise) for noise in (3.0, 0.0))
        sent = noisy.updates(models, clients, KEYS) - bare.updates(models, clients, KEYS)
        assert len({tuple(row.tolist()) for row in sent}) == 4, "everybody draws its own"
    assert abs(float(sent.std()) / 6.0 - 1.0) < 0.1
    again = privatise(torch.zeros(1600), clip=2.0, noise_multiplier=3.0)
    assert not torch.equal(sent.flatten(), again)


def test_each_client_pays_for_its_own_uploads_and_reuse_is_free() -> None:
    task = privatised(tasks.quadratic(clients=6, dim=5), clip=1.0, noise_multiplier=2.0)
    run = simulate(task, ACE(), lr=0.05, scenario=Scenario(spread=10.0), stop=Stop(arrivals=80), evaluations=2)
    assert run.steps > max(run.participation), "every row was stepped on more often than it was uploaded"
    paid = epsilon_per_client(run, noise_multiplier=2.0, delta=DELTA)
    assert paid == [epsilon(uploads, noise_multiplier=2.0, delta=DELTA) for uploads in run.participation]
    assert max(paid) > min(paid) > 0
    run.events.loc[0, "accepted"] = False
    assert epsilon_per_client(run, noise_multiplier=2.0, delta=DELTA) == paid, "what was refused was sent all the same"


def test_an_upload_that_was_under_way_when_its_client_dropped_out_is_paid_for() -> None:
    """Everybody is at work when half of them vanish: what they were sending may have left them."""
    task = privatised(tasks.quadratic(clients=6, dim=5), clip=1.0, noise_multiplier=2.0)
    scenario = Scenario(spread=4.0, dropout=0.5, dropout_at=0.5)
    run = simulate(task, ACE(), lr=0.05, scenario=scenario, stop=Stop(arrivals=80), evaluations=2)
    extra = [int(row["uploads"]) - arrivals for row, arrivals in zip(run.clients, run.participation, strict=True)]
    assert sorted(extra) == [0, 0, 0, 1, 1, 1]
    paid = epsilon_per_client(run, noise_multiplier=2.0, delta=DELTA)
    for client, arrivals in enumerate(run.participation):
        assert paid[client] == epsilon(arrivals + extra[client], noise_multiplier=2.0, delta=DELTA)


def test_a_record_that_does_not_say_what_was_sent_is_refused() -> None:
    run = simulate(tasks.quadratic(clients=3, dim=5), ACE(), lr=0.05, stop=Stop(arrivals=9), evaluations=1)
    for row in run.clients:
        del row["uploads"]
    with pytest.raises(InvalidInput, match="does not say how many updates left each client"):
        epsilon_per_client(run, noise_multiplier=2.0)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"noise_multiplier": -1.0}, {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"delta": 0.0}):
        with pytest.raises(InvalidInput, match=f"^{next(iter(wrong))} is .*; allowed: "):
            epsilon(1, **{"noise_multiplier": 1.0, **wrong})
    with pytest.raises(InvalidInput, match="^clip is 0"):
        privatised(TASK, clip=0.0, noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="^uploads is -1"):
        epsilon(-1, noise_multiplier=1.0)
