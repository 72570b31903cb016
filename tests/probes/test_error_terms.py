"""The measured terms are those of the definitions, and in closed form what the paper says they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from tests.probes.dense import NAMES, ORACLES, Dense
from tests.rules.oracles import Oracle

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.core.rule import Method
from acefl.probes import ErrorTerms
from acefl.probes.error_terms import squared_norm
from acefl.rules import Calibrated
from acefl.runs.record import Run
from acefl.runs.simulate import simulation
from acefl.runs.training import Training

CLIENTS, DIM, NOISE = 6, 5, 0.5
TASK = tasks.quadratic(clients=CLIENTS, dim=DIM, noise=NOISE, seed=3)
SILENT = tasks.quadratic(clients=CLIENTS, dim=DIM, noise=0.0, seed=3)
SPREAD = Scenario(spread=20.0)


def run(rule: Method, *observers: Any, task: Any = TASK, arrivals: int = 200, **settings: Any) -> Run:
    settings = {"lr": 0.05, "scenario": SPREAD, "evaluations": 4} | settings
    return simulate(task, rule, stop=Stop(arrivals=arrivals), observers=observers, **settings)


@pytest.mark.parametrize(("rule", "oracle"), ORACLES, ids=NAMES)
def test_terms_are_those_of_the_definitions(rule: Method, oracle: Callable[[int, int], Oracle]) -> None:
    """Against sums over every contribution ever made, with the oracle's weights and the task's exact gradients.

    ACE's bias is zero; that of ASGD is the arriving client's gradient minus the mean, and so on: all of it is in here.
    """
    probe, dense = ErrorTerms(every=20), Dense(oracle, 400)
    run(rule, probe, dense)
    steps = {arrivals: step for step, arrivals in reversed(list(enumerate(dense.arrivals)))}
    assert len(probe.records) >= 8
    for record in probe.records:
        step = steps[int(record["arrival"])]
        assert record["step"] == step + 1
        model = dense.models[step]
        gradient = partial(_gradient, dense)
        mean = sum(weight * gradient(*pair) for pair, weight in dense.by_pair(step).items())
        whole = mean
        latest = list(enumerate(dense.latest(step, CLIENTS)))
        stale = sum(gradient(*pair) for pair in latest) / CLIENTS
        truth = TASK.gradients(model).mean(0)
        update = dense.updates[step].double()
        if isinstance(rule, CA2FL):  # A = (1/m) sum over the buffer of (g_i - grad F_i): what was cached is fixed
            fresh = dense.fresh(step)
            mean = update - sum(w * (a.update.double() - gradient(a.client, a.trained_on)) for a, w in fresh)
        expected = {"noise": update - mean, "bias": mean - stale, "delay": stale - truth, "mse": update - truth}
        if isinstance(rule, CA2FL):
            expected |= {"noise_all": update - whole, "bias_all": whole - stale}
        assert expected.keys() <= record.keys()
        assert ("noise_all" in record) is isinstance(rule, CA2FL)
        for name, term in expected.items():
            assert record[name] == pytest.approx(float(term @ term), rel=1e-3, abs=1e-9), name
        for name in ("noise", "delay"):
            cosine = float(expected[name] @ truth / (expected[name].norm() * truth.norm()))
            assert record[f"cos_{name}"] == pytest.approx(cosine, abs=1e-3)
        assert record["squared_gradient"] == pytest.approx(float(truth @ truth), rel=1e-6)
        spread = sum(float((gradient(*pair) - stale).square().sum()) for pair in latest) / CLIENTS
        assert record["heterogeneity"] == pytest.approx(spread, rel=1e-4)


def _gradient(dense: Dense, client: int, version: int) -> torch.Tensor:
    return TASK.hessians[client] @ (dense.models[version].double() - TASK.optima[client])


@pytest.mark.parametrize(("rule", "oracle"), ORACLES, ids=NAMES)
def test_without_sampling_noise_there_is_no_noise_term(rule: Method, oracle: object) -> None:
    """The update is then made of full gradients itself: u = ubar to the rounding of float32."""
    probe = ErrorTerms(every=20)
    run(rule, probe, task=SILENT)
    for record in probe.records:
        assert record["noise"] <= 1e-9 * max(record["squared_update"], 1.0)


@pytest.mark.parametrize("rule", [ACE(), ACE(variant="direct"), ACE(variant="client-held"), ACE(table="int8")])
def test_ace_has_no_bias(rule: Method) -> None:
    probe = ErrorTerms(every=20)
    run(rule, probe)
    assert len(probe.records) >= 8
    for record in probe.records:
        assert record["bias"] <= 1e-12 * record["heterogeneity"]


def test_rounding_in_the_table_counts_as_noise() -> None:
    exact, rounded = ErrorTerms(every=20), ErrorTerms(every=20)
    run(ACE(), exact, task=SILENT)
    run(ACE(table="int8"), rounded, task=SILENT)
    assert min(record["noise"] for record in rounded.records) > 100 * max(record["noise"] for record in exact.records)
    assert max(record["bias"] for record in rounded.records) < 1e-9


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        (ASGD(), 1.0),
        (FedBuff(buffer=5), 1 / 5),
        (ACE(), 1 / 10),
        (CA2FL(buffer=1), 1.0),  # m fresh updates weigh 1/m each; what they replace and the other caches are fixed
    ],
    ids=["ASGD", "FedBuff", "ACE", "CA2FL"],
)
def test_noise_is_the_variance_of_one_gradient_times_the_sum_of_squared_weights(rule: Method, share: float) -> None:
    """sigma^2 for ASGD, sigma^2 / m for FedBuff, sigma^2 / n for ACE: the paper's term A.

    Each record is sigma^2 times the share times a chi-squared variable of 200 degrees of freedom, over 200. Records are
    100 arrivals apart, in which all ten clients arrive (one is missing with a chance of 3e-4), so they are independent,
    and the mean of 15 has a standard deviation of sqrt(2 / 200 / 15) = 2.6 %. The tolerance of 13 % is five of those:
    a false alarm once in two million seeds.
    """
    task = tasks.quadratic(clients=10, dim=200, noise=NOISE)
    probe = ErrorTerms(every=100)
    run(rule, probe, task=task, arrivals=1_500, lr=0.001, scenario=Scenario(), evaluations=1)
    records = pd.DataFrame(probe.records)
    assert len(records) == 15
    assert records["squared_weights"].to_numpy() == pytest.approx(share, rel=1e-5)
    assert records["noise"].mean() == pytest.approx(NOISE**2 * share, rel=0.13)


@pytest.mark.parametrize("rule", [ACE(), ACED(tau=20), CA2FL(buffer=4), FedBuff(buffer=4), ASGD()])
@pytest.mark.parametrize("scenario", [SPREAD, Scenario(clock="sampled", delay=5.0)], ids=["event", "sampled"])
def test_delay_error_is_at_most_the_drift_of_the_model(rule: Method, scenario: Scenario) -> None:
    """||C||^2 <= L^2 times the mean squared drift, and L is at most 1 on this task."""
    probe = ErrorTerms(every=10)
    run(rule, probe, scenario=scenario)
    assert len(probe.records) >= 15
    for record in probe.records:
        assert 0.0 < record["delay"] <= record["drift"] * (1 + 1e-6)


@pytest.mark.parametrize("table", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("rule", [ACED, CA2FL], ids=["ACED", "CA2FL"])
def test_steps_on_few_rounded_rows_are_measured_too(rule: Any, table: str) -> None:
    """A single row's projection may be next to nothing, and what rounding left is then many times as much."""
    few = ACED(tau=1, warmup="seen", table=table) if rule is ACED else CA2FL(buffer=1, table=table)
    task = tasks.quadratic(clients=CLIENTS, dim=40, noise=NOISE, seed=3)
    probe = ErrorTerms(every=1)
    run(few, probe, task=task, arrivals=150)
    assert len(probe.records) == 150


def test_a_method_without_a_table_has_no_cache_that_is_fixed() -> None:
    without, plain = ErrorTerms(every=20), ErrorTerms(every=20)
    run(Calibrated(c=1.0, beta=0.0, buffer=4), without)
    run(FedBuff(buffer=4), plain)
    for mine, its in zip(without.records, plain.records, strict=True):
        assert mine.keys() == its.keys()
        assert mine["noise"] == pytest.approx(its["noise"])


def test_an_update_that_nobody_is_in_is_measured_too() -> None:
    """ACED leaves out whoever is too old; with six clients at work and tau = 1 that is now and then everybody."""
    probe = ErrorTerms(every=1)
    run(ACED(tau=1, freshness="model"), probe)
    empty = [record for record in probe.records if record["squared_weights"] == 0.0]
    assert empty
    for record in empty:
        assert record["noise"] == record["squared_update"] == 0.0
        assert record["mse"] == pytest.approx(record["squared_gradient"])


def test_a_client_alone_has_neither_bias_nor_delay() -> None:
    probe = ErrorTerms(every=10)
    run(ASGD(), probe, task=tasks.quadratic(clients=1, dim=DIM))
    for record in probe.records:
        assert record["bias"] == pytest.approx(0.0, abs=1e-20)
        assert record["delay"] == pytest.approx(0.0, abs=1e-10)  # the task's own rounding of its Hessians to one


@pytest.mark.parametrize("rule", [ACE(), ACED(tau=20), CA2FL(buffer=4), FedBuff(buffer=4), ASGD()])
@pytest.mark.parametrize(
    "scenario",
    [SPREAD, Scenario(clock="tick", delay=2.0), Scenario(clock="sampled", delay=5.0), Scenario(dropout=0.5)],
    ids=["event", "tick", "sampled", "dropout"],
)
def test_a_probe_does_not_change_the_run(rule: Method, scenario: Scenario) -> None:
    bare = run(rule, scenario=scenario, arrivals=80)
    watched = run(
        rule,
        ErrorTerms(every=7),
        ErrorTerms(every=13, gradients="sampled", replicates=3),
        scenario=scenario,
        arrivals=80,
    )
    assert torch.equal(bare.model, watched.model)
    assert bare.events.equals(watched.events)
    assert [row["gap"] for row in bare.metrics] == [row["gap"] for row in watched.metrics]


def test_nor_does_it_on_a_task_that_is_a_torch_module() -> None:
    settings: dict[str, Any] = {"task": _torch_task(), "arrivals": 60}
    bare, watched = run(FedBuff(buffer=3), **settings), run(FedBuff(buffer=3), ErrorTerms(every=20), **settings)
    assert torch.equal(bare.model, watched.model)


def test_history_has_the_mean_since_the_evaluation_before_and_the_cost() -> None:
    probe = ErrorTerms(every=10)
    history = run(ACE(), probe).history
    assert math.isnan(history["noise"].iloc[0])  # nothing is measured before the first step
    records = pd.DataFrame(probe.records)
    for before, now in zip(history["arrival"], history["arrival"].iloc[1:], strict=False):
        window = records[(records["arrival"] > before) & (records["arrival"] <= now)]
        row = history[history["arrival"] == now].iloc[0]
        for name in ("noise", "bias", "delay", "mse", "squared_gradient", "heterogeneity", "cos_bias"):
            assert row[name] == pytest.approx(window[name].mean())
    assert history["probe_seconds"].is_monotonic_increasing
    assert 0 < records["seconds"].sum() < history["probe_seconds"].iloc[-1]


@pytest.mark.parametrize("rule", [FedBuff(buffer=4), CA2FL(buffer=4)])
def test_sampled_terms_are_unbiased_and_their_intervals_cover_the_exact_ones(rule: Method) -> None:
    """Two probes watch the same steps, one with full gradients, one with eight minibatches per client.

    Noise, bias and MSE of 40 steps give 120 intervals, nominally 95 %; the jackknife is approximate with eight
    replicates, so 83 % are asked for (with a true coverage of 93 % fewer have a chance of 2e-4). The mean error over
    the steps is held to five of its own standard errors. The delay has no sampling error at all on this task: its noise
    does not depend on the model, so it cancels within a replicate.
    """
    exact, sampled = ErrorTerms(every=10, gradients="full"), ErrorTerms(every=10, gradients="sampled")
    run(rule, exact, sampled, arrivals=400)
    full, estimates = pd.DataFrame(exact.records), pd.DataFrame(sampled.records)
    assert len(full) == len(estimates) == 40
    covered = 0
    for name in ("noise", "bias", "mse"):
        covered += int(((estimates[f"{name}_low"] <= full[name]) & (full[name] <= estimates[f"{name}_high"])).sum())
        error = estimates[name] - full[name]
        assert abs(error.mean()) <= 5 * error.std() / math.sqrt(len(error))
        assert error.abs().max() > 1e-4
    assert covered >= 100
    assert estimates["delay"].to_numpy() == pytest.approx(full["delay"].to_numpy(), rel=1e-4, abs=1e-8)
    assert (estimates["cos_bias"] - full["cos_bias"]).abs().median() < 0.1


def test_sampled_bias_of_ace_is_zero_too() -> None:
    """A client's minibatch is the same at all its models within a replicate, so what cancels cancels exactly."""
    probe = ErrorTerms(every=20, gradients="sampled", replicates=3)
    run(ACE(), probe)
    assert max(abs(record["bias"]) for record in probe.records) < 1e-12


def test_squared_norm_has_no_bias_where_squaring_the_mean_has() -> None:
    """The true vector is zero; the mean of 4 replicates has a squared norm of 10 / 4 on average, the estimate one of 0.

    1,000 estimates with a standard deviation of sqrt(2 * 10 / 12) = 1.29 each: the mean is within 5 * 0.041 (one false
    alarm in two million).
    """
    draws = torch.randn(1_000, 4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimates = torch.tensor([squared_norm(replicates)[0] for replicates in draws])
    assert abs(float(estimates.mean())) < 5 * 1.29 / math.sqrt(1_000)
    assert float(draws.mean(1).square().sum(1).mean()) > 2.0


def test_models_that_nobody_needs_are_let_go() -> None:
    """1,000 steps make as many models; at most one per client at work, one per contribution and a few spares stay."""
    probe = ErrorTerms(every=50)
    run(ACE(), probe, arrivals=1_000)
    assert probe.models_kept < 150


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_records() -> None:
    def begin(probe: ErrorTerms) -> Training:
        settings: dict[str, Any] = {"lr": 0.05, "scenario": SPREAD, "stop": Stop(arrivals=200)}
        return simulation(TASK, CA2FL(buffer=4), observers=[probe], **settings)

    whole, first, second = ErrorTerms(every=10), ErrorTerms(every=10), ErrorTerms(every=10)
    begin(whole).complete()
    interrupted = begin(first)
    for _, spent in interrupted.advance():
        if spent >= 0.43:
            break
    resumed = begin(second)
    resumed.load_state_dict(interrupted.state_dict())
    resumed.complete()
    assert len(whole.records) == len(second.records)
    for one, other in zip(whole.records, second.records, strict=True):
        assert {**one, "seconds": 0.0} == pytest.approx({**other, "seconds": 0.0}, rel=1e-9)


def test_a_probe_that_missed_the_start_says_so() -> None:
    class Late(ErrorTerms):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    settings: dict[str, Any] = {"lr": 0.05, "scenario": SPREAD, "stop": Stop(arrivals=100)}
    first = simulation(TASK, ASGD(), observers=[ErrorTerms()], **settings)
    next(first.advance())
    second = simulation(TASK, ASGD(), observers=[Late()], **settings)
    second.load_state_dict(first.state_dict())
    with pytest.raises(InvalidInput, match="must watch a run from its start"):
        second.complete()


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidInput, match="every is 0; allowed: at least 1"):
        ErrorTerms(every=0)
    with pytest.raises(InvalidInput, match="replicates is 2; allowed: at least 3"):
        ErrorTerms(replicates=2)
    with pytest.raises(InvalidInput, match="gradients is 'all'; allowed: auto, full, sampled"):
        ErrorTerms(gradients="all")


def _torch_task(**settings: Any) -> tasks.TorchTask:
    return tasks.TorchTask(settings.pop("model", HIDDEN), torch.nn.CrossEntropyLoss(), DATA, batch=5, **settings)


DRAW = torch.Generator().manual_seed(0)
DATA = [(torch.randn(size, 4, generator=DRAW), torch.randint(0, 3, (size,), generator=DRAW)) for size in (3, 25, 8)]
HIDDEN = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
LOCAL = tasks.LocalSteps(2, partial(torch.optim.SGD, lr=0.1))
DROPOUT = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
BATCH_NORM = tasks.batch_statistics(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)))


@pytest.mark.parametrize(
    "settings", [{"local": LOCAL}, {"model": DROPOUT}, {"model": BATCH_NORM}], ids=["local steps", "dropout", "norm"]
)
def test_where_no_full_gradient_is_the_mean_of_updates_it_is_refused_and_sampling_works(
    settings: dict[str, Any],
) -> None:
    task = _torch_task(compute="one-by-one", **settings)
    with pytest.raises(InvalidInput, match="allowed: sampled"):
        run(ASGD(), ErrorTerms(every=10, gradients="full"), task=task)
    probe = ErrorTerms(every=10, replicates=4)  # auto
    run(ACE(), probe, task=task, arrivals=40)
    assert probe.records
    assert all(abs(record["bias"]) < 1e-9 for record in probe.records)


@pytest.mark.parametrize("compute", ["together", "one-by-one"])
def test_full_gradients_are_those_of_all_data_at_once(compute: str) -> None:
    """Clients have less, as much, and several times as much data as a minibatch."""
    task = _torch_task(compute=compute, ridge=0.1)
    models = task.initial() + 0.3 * torch.randn(5, len(task.initial()), generator=torch.Generator().manual_seed(1))
    clients = [1, 0, 2, 1, 1]
    rows = task.client_gradients(models, clients)
    for row, model, client in zip(rows, models, clients, strict=True):
        torch.testing.assert_close(row, _plain_gradient(model, client), rtol=1e-4, atol=1e-6)
    mean = torch.stack([_plain_gradient(models[0], client) for client in range(3)]).mean(0)
    torch.testing.assert_close(task.mean_gradient(models[0]), mean, rtol=1e-4, atol=1e-6)


def _plain_gradient(model: torch.Tensor, client: int) -> torch.Tensor:
    """One backward pass over all of a client's data, in double precision."""
    module = copy.deepcopy(HIDDEN).double()
    torch.nn.utils.vector_to_parameters(model.double(), module.parameters())
    inputs, targets = DATA[client]
    loss = torch.nn.functional.cross_entropy(module(inputs.double()), targets)
    loss = loss + 0.05 * sum((parameter**2).sum() for parameter in module.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]).float()
