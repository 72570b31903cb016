"""FedAsync against its formula, on models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import FedAsyncOracle
from tests.rules.schedules import History, histories
from tests.rules.served import server_of, walk_models

from acefl import ASGD, Adam, Arrival, FedAsync, InvalidInput, Scenario, Server, Stop, simulate, tasks
from acefl.rules.fedasync import STALENESS


@settings(max_examples=80)
@given(histories(), st.sampled_from(STALENESS), st.sampled_from((0.1, 0.6, 1.0)), st.sampled_from((0.5, 3.0)))
def test_the_client_s_own_model_is_mixed_into_the_current_one(
    history: History, staleness: str, alpha: float, a: float
) -> None:
    walk_models(history, FedAsync(alpha, staleness, a, b=1.0), FedAsyncOracle(alpha, staleness, a, 1.0))


def test_the_paper_s_constants_are_the_defaults() -> None:
    history = History(2, 3, [])
    for staleness, a in (("polynomial", 0.5), ("hinge", 10.0)):
        rule = FedAsync(staleness=staleness).build(history.clients, torch.zeros(2))
        oracle = FedAsyncOracle(0.6, staleness, a, 4.0)
        for tau in range(9):
            assert rule.absorb(Arrival(0, torch.ones(2), 0, tau, tau))
            torch.testing.assert_close(rule.direction()[0].item(), 0.6 * oracle.s(tau), rtol=1e-6, atol=0)
            rule.clear()


def test_an_old_model_pulls_the_current_one_back_even_if_its_client_found_nothing_to_change() -> None:
    """The shortcut w - alpha * lr * update would not move here."""
    server = server_of(FedAsync(alpha=0.5, staleness="constant"), 2, lr=1.0)
    start = server.model.clone()
    server.handle([Arrival(0, torch.full((5,), 4.0), 0, 0, 0)])
    server.handle([Arrival(1, torch.zeros(5), 0, 1, 1)])
    torch.testing.assert_close(server.model, start - 1.0)  # back half the way of 2


def test_without_staleness_and_with_alpha_one_it_is_sgd() -> None:
    task = tasks.quadratic(clients=1, dim=4, seed=0)
    runs = [
        simulate(task, method, lr=0.1, scenario=Scenario(), stop=Stop(arrivals=50))
        for method in (FedAsync(alpha=1.0), ASGD())
    ]
    torch.testing.assert_close(runs[0].model, runs[1].model)


def test_only_the_models_that_somebody_works_on_are_kept() -> None:
    from acefl.runs.simulate import simulation

    task = tasks.quadratic(clients=6, dim=3, seed=0)
    run = simulation(task, FedAsync(), lr=0.1, scenario=Scenario(spread=20.0), stop=Stop(arrivals=400))
    kept = [len(run.server.state_dict()["sent"]) for _ in run.advance()]
    assert max(kept) <= 2 * 7 + 17
    assert run.server.version == 400


def test_an_optimizer_has_no_step_to_make_and_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a method that mixes models"):
        Server(torch.zeros(2), FedAsync().build(2, torch.zeros(2)), 0.1, 2, optimizer=Adam())
    with pytest.raises(InvalidInput, match="alpha is 0"):
        FedAsync(alpha=0)
    with pytest.raises(InvalidInput, match="staleness is 'sqrt'"):
        FedAsync(staleness="sqrt")
    with pytest.raises(InvalidInput, match="a is -1"):
        FedAsync(a=-1)
