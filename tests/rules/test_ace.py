"""ACE against Algorithm 1, in all variants, encodings, weights and warm-ups, with clients that come and go."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import ACEOracle
from tests.rules.schedules import DIM, Come, History, Join, Leave, histories, long_history, walk

from acefl import ACE, Arrival, InvalidInput, Server
from acefl.core.rule import Audience, Rule, Upload
from acefl.core.types import Vector
from acefl.rules.ace import VARIANTS, ClientMemory, IncrementalACE
from acefl.rules.settings import ENCODINGS, WARMUPS, WEIGHTS
from acefl.table import Table

LIKE = torch.zeros(DIM)


def against_oracle(history: History, method: ACE) -> int:
    samples = [3 + 5 * client for client in range(history.clients)]
    weights = [1.0] * history.clients if method.weights == "uniform" else [float(s) for s in samples]
    oracle = ACEOracle(weights, wait=method.warmup == "wait", forgets=method.variant != "client-held")

    def build() -> Rule:
        return method.build(history.clients, torch.zeros(history.dim), samples)

    return walk(history, build, oracle, differences=method.uploads is Upload.CHANGE)


methods = st.one_of(
    st.builds(
        ACE,
        table=st.sampled_from(ENCODINGS),
        weights=st.sampled_from(WEIGHTS),
        warmup=st.sampled_from(WARMUPS),
    ),
    st.builds(
        ACE,
        variant=st.sampled_from(("direct", "client-held")),
        weights=st.sampled_from(WEIGHTS),
        warmup=st.sampled_from(WARMUPS),
    ),
)


@settings(max_examples=60)
@given(histories(), methods)
def test_every_step_is_the_mean_of_all_clients_latest_updates(history: History, method: ACE) -> None:
    against_oracle(history, method)


@settings(max_examples=60)
@given(histories(elastic=True), methods)
def test_the_mean_is_over_those_that_count_when_clients_join_and_leave(history: History, method: ACE) -> None:
    against_oracle(history, method)


@pytest.mark.parametrize("table", ENCODINGS)
def test_a_large_model(table: str) -> None:
    assert against_oracle(long_history(Leave(1), Join(2.5), [Come(3, None)]), ACE(table=table)) == 9


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_federation_whose_every_member_is_replaced(variant: str) -> None:
    """Each founder leaves after a newcomer has arrived, then the newcomers go on: nothing of the founders is left."""
    events = [[Come(0, None)], [Come(1, None)], Join(2.5), Join(0.3), [Come(2, None)], Leave(0), [Come(3, 1)], Leave(1)]
    history = History(2, 7, [*events, [Come(2, None)], [Come(3, None), Come(2, 0)], [Come(0, 3)]])
    assert against_oracle(history, ACE(variant)) == 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_nobody_waits_for_a_client_that_left_before_its_first_update(variant: str) -> None:
    rule = ACE(variant).build(3, LIKE)
    assert not rule.absorb(Arrival(0, torch.ones(DIM), 0, 0, 0))
    rule.leave(2)
    rule.leave(2)
    assert rule.audience is Audience.NEWCOMERS
    assert rule.absorb(Arrival(1, torch.full((DIM,), 3.0), 0, 0, 1))
    assert rule.audience is Audience.EVERYBODY
    torch.testing.assert_close(rule.direction(), torch.full((DIM,), 2.0))


def test_a_rule_made_of_this_one_steps_by_its_own_direction() -> None:
    class Still(IncrementalACE):
        def direction(self) -> Vector:
            return torch.zeros_like(super().direction())

    server = Server(torch.zeros(3), Still([1.0], torch.zeros(3), Table(1, torch.zeros(3)), wait=True), 0.5, 1)
    assert server.handle([Arrival(0, torch.ones(3), 0, 0, 0)])
    assert torch.equal(server.model, torch.zeros(3))


def test_the_running_sum_does_not_drift_over_many_arrivals() -> None:
    """6,000 arrivals later the direction is still the mean of the rows, to the last bits of float32."""
    random = torch.Generator().manual_seed(0)
    rule = ACE().build(3, torch.zeros(2))
    last = {}
    for task in range(6_000):
        last[task % 3] = torch.randn(2, generator=random) * 10.0 ** float(torch.randint(-2, 3, (), generator=random))
        rule.absorb(Arrival(task % 3, last[task % 3], task, task, task))
    torch.testing.assert_close(rule.direction(), torch.stack(list(last.values())).mean(0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_of_odd_weights_changes_nothing_bit_for_bit(variant: str) -> None:
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1: the sum of weights is part of the state."""
    rule, resumed = (ACE(variant, warmup="seen").build(1, LIKE) for _ in range(2))
    for clients, weight in ((2, 0.3), (3, 0.2), (4, 0.1)):
        rule.join(clients, weight)
    for task, client in enumerate((3, 2, 1)):
        rule.absorb(Arrival(client, torch.full((DIM,), 1.0 + client), 0, task, task))
    resumed.load_state_dict(rule.state_dict())
    assert torch.equal(resumed.direction(), rule.direction())
    assert resumed.state_dict()["seen_weight"] == rule.state_dict()["seen_weight"]


def test_client_memory_sends_changes_that_add_up_to_the_last_gradient() -> None:
    memory = ClientMemory()
    gradients = [torch.tensor([2.0, 3.0]), torch.tensor([5.0, -1.0]), torch.tensor([4.0, 4.0])]
    sent = [memory.difference(0, gradient.clone()) for gradient in gradients]
    assert torch.equal(sum(sent[1:], sent[0]), gradients[-1])
    resumed = ClientMemory()
    resumed.load_state_dict(memory.state_dict())
    assert torch.equal(resumed.difference(0, torch.zeros(2)), -gradients[-1])
    assert torch.equal(resumed.difference(1, gradients[0]), gradients[0])


def test_client_memory_does_not_count_on_what_the_server_refuses() -> None:
    memory = ClientMemory()
    sent = [float(memory.difference(0, torch.tensor([x]))) for x in (math.nan, 1.0, math.inf, math.nan, 3.0, 4.0)]
    assert [x for x in sent if math.isfinite(x)] == [1.0, 2.0, 1.0]


def test_client_memory_keeps_its_own_copy() -> None:
    memory, gradient = ClientMemory(), torch.tensor([2.0])
    memory.difference(0, gradient)
    gradient.fill_(100.0)
    assert memory.difference(0, torch.tensor([3.0])) == 1.0


def test_weights_by_samples_need_the_samples() -> None:
    with pytest.raises(InvalidInput, match="samples"):
        ACE(weights="samples").build(3, LIKE)
    with pytest.raises(InvalidInput, match="one per client, 3"):
        ACE(weights="samples").build(3, LIKE, [1, 2])
    with pytest.raises(InvalidInput, match="without data"):
        ACE(weights="samples").build(3, LIKE, [1, 2, 0])


@pytest.mark.parametrize(
    "wrong", [{"variant": "fast"}, {"table": "fp64"}, {"weights": "size"}, {"warmup": "none"}, {"home": ""}]
)
def test_unknown_settings_are_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        ACE(**wrong)


def test_dude_asgd_with_one_minibatch_per_arrival_is_ace_bit_for_bit() -> None:
    """DuDe-ASGD (arXiv 2405.16966): g <- g + (g_j - G_j) / n; G_j <- g_j; w <- w - eta g. The sum is in float64."""
    clients, eta = 5, 0.05
    random = torch.Generator().manual_seed(0)
    model = torch.randn(DIM, generator=random)
    server = Server(model, ACE().build(clients, model), eta, clients)
    stored = torch.zeros(clients, DIM, dtype=torch.float64)  # G
    total = torch.zeros(DIM, dtype=torch.float64)  # n g
    order = [*range(clients), *torch.randint(clients, (400,), generator=random).tolist()]
    for task, client in enumerate(order):
        gradient = model - client + torch.randn(DIM, generator=random)
        server.handle([Arrival(client, gradient, server.version, server.version, task)])
        total += gradient.double() - stored[client]
        stored[client] = gradient.double()
        if task >= clients - 1:
            model = model.sub(total.float(), alpha=eta / clients)
        assert torch.equal(server.model, model)
