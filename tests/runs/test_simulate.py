"""One run from a task and a method to numbers: what is recorded, when it is evaluated, and how it ends badly."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import acefl
from acefl import (
    ACE,
    ACED,
    ASGD,
    CA2FL,
    Arrival,
    DelayAdaptiveASGD,
    FedBuff,
    InvalidInput,
    Run,
    Scenario,
    Stop,
    simulate,
    tasks,
)
from acefl.core.gate import NormLimit
from acefl.core.optimizers import Momentum
from acefl.core.rule import Method, Rule
from acefl.core.schedules import Cosine
from acefl.core.server import Server
from acefl.core.types import Step, Vector
from acefl.runs.observers import Observer
from acefl.runs.training import Training
from acefl.tasks import TorchTask

N = 10
SLOW = Scenario(spread=30.0)


@pytest.fixture(scope="module")
def quadratic() -> tasks.Quadratic:
    return tasks.quadratic(clients=N, dim=4, noise=0.2, seed=0)


@pytest.fixture(scope="module")
def own_task() -> TorchTask:
    """Somebody's own module and data: three clusters, each client with two of them."""
    draw = torch.Generator().manual_seed(0)
    centres = 2.0 * torch.randn(3, 5, generator=draw)
    clients = []
    for client in range(N):
        labels = torch.tensor([client % 3, (client + 1) % 3]).repeat(10)
        clients.append((centres[labels] + 0.5 * torch.randn(20, 5, generator=draw), labels))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return TorchTask(model, nn.CrossEntropyLoss(), clients, batch=8, compute="one-by-one")


def run_of(task: Any, rule: Any = None, **settings_: Any) -> Run:
    return simulate(task, rule or ASGD(), **{"lr": 0.05, "scenario": SLOW, "stop": Stop(arrivals=100), **settings_})


# --- what is recorded -------------------------------------------------------------------------------------------


def test_the_history_has_a_column_for_everything(quadratic: tasks.Quadratic, own_task: TorchTask) -> None:
    always = {"step", "arrival", "time", "loss", "client_loss", "slow_loss", "fast_loss", "worst_loss"}
    exact = run_of(quadratic, evaluations=4).history
    held_out = {f"heldout_{whose}_loss" for whose in ("client", "slow", "fast", "worst")}
    assert set(exact.columns) == always | held_out | {"gap", "grad_norm"}
    assert len(exact) == 5
    learnt = run_of(own_task, evaluations=4).history
    assert set(learnt.columns) == always | {"accuracy", "slow_accuracy", "fast_accuracy", "worst_accuracy"}


def test_the_last_row_is_the_last_model(quadratic: tasks.Quadratic, own_task: TorchTask) -> None:
    for task in (quadratic, own_task):
        run = run_of(task, evaluations=3, stop=Stop(arrivals=101))
        result = task.evaluate(run.model)
        assert result.metrics == {name: run.final[name] for name in result.metrics}
        assert [row["loss"] for row in run.clients] == result.client_loss.tolist()
        last = run.history.iloc[-1]
        assert (last["step"], last["arrival"], last["time"]) == (run.steps, run.arrivals, run.time)


def test_slow_and_fast_are_the_fifths_by_mean_time(own_task: TorchTask) -> None:
    run = run_of(own_task, scenario=Scenario(spread=30.0, slow="random"))
    order = sorted(range(N), key=lambda client: run.clients[client]["mean_time"])
    for name, fifth in (("slow", order[-2:]), ("fast", order[:2])):
        for metric in ("accuracy", "loss"):
            mean = np.mean([run.clients[client][metric] for client in fifth])
            assert run.final[f"{name}_{metric}"] == pytest.approx(mean)
    assert run.final["worst_accuracy"] == min(row["accuracy"] for row in run.clients)
    assert run.final["worst_loss"] == max(row["loss"] for row in run.clients)


def test_events_participation_and_totals_agree(quadratic: tasks.Quadratic) -> None:
    run = run_of(quadratic, FedBuff(buffer=3))
    assert len(run.events) == run.arrivals == sum(run.participation) == 100
    assert np.bincount(run.events["client"], minlength=N).tolist() == run.participation
    assert [row["participation"] for row in run.clients] == run.participation
    assert run.events["time"].iloc[-1] == run.time
    assert run.steps == 33
    assert run.events["accepted"].all()
    assert run.refused == {}
    assert not run.diverged


def test_watching_changes_nothing(quadratic: tasks.Quadratic) -> None:
    often, seldom = run_of(quadratic, evaluations=100), run_of(quadratic, evaluations=1)
    assert torch.equal(often.model, seldom.model)
    assert often.events.equals(seldom.events)


# --- when it is evaluated ---------------------------------------------------------------------------------------


@settings(max_examples=25)
@example(100, 50)  # 58 of 100 arrivals are 28.999999999999996 of 50 evaluations
@given(st.integers(1, 60), st.integers(1, 25))
def test_evaluations_come_at_even_shares_of_the_budget(arrivals: int, evaluations: int) -> None:
    task = tasks.quadratic(clients=2, dim=1, seed=0)
    run = simulate(task, ASGD(), lr=0.1, stop=Stop(arrivals=arrivals), evaluations=evaluations)
    due = {math.ceil(share * arrivals / evaluations) for share in range(evaluations + 1)}
    assert run.history["arrival"].tolist() == sorted(due)


@pytest.mark.parametrize("stop", [Stop(steps=40), Stop(time=20.0), Stop(arrivals=77, time=1e6)])
def test_other_budgets_are_shared_out_too(quadratic: tasks.Quadratic, stop: Stop) -> None:
    run = run_of(quadratic, FedBuff(buffer=2), stop=stop, evaluations=8)
    shares = [stop.progress(Step(int(r["arrival"]), int(r["step"]), r["time"], False)) for r in run.metrics]
    assert shares[0] == 0.0
    assert shares[-1] >= 1.0
    for k, share in enumerate(shares[:-1]):
        assert share >= k / 8
    assert len(shares) == 9


def test_progress_rises_to_one(quadratic: tasks.Quadratic) -> None:
    for arrivals in (7, 1_000):
        told: list[tuple[float, float, str]] = []
        add = told.append
        run_of(quadratic, stop=Stop(arrivals=arrivals), evaluations=1, progress=lambda *state, add=add: add(state))
        seen = [spent for spent, _, _ in told]
        assert {(whole, last) for _, whole, last in told} == {(1.0, "ASGD")}
        assert seen == sorted(set(seen))
        assert seen[-1] == 1.0
        assert len(seen) <= 101


# --- what a run may be made of ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        ACE(),
        ACE(table="int8"),
        ACE(variant="client-held"),
        ACED(),
        FedBuff(buffer=3),
        CA2FL(buffer=3),
        ASGD(),
        DelayAdaptiveASGD(),
    ],
)
def test_every_method_learns_somebodys_own_task(own_task: TorchTask, rule: Any) -> None:
    run = run_of(own_task, rule, lr=0.3, stop=Stop(arrivals=300), evaluations=2)
    assert run.final["client_loss"] < 0.5 * run.metrics[0]["client_loss"]
    assert run.final["accuracy"] > 0.8


class SignDescent(Method):
    """Somebody's own method, and no dataclass."""

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return SignRule(like)


class SignRule(Rule):
    saved = ("last",)

    def __init__(self, like: Vector) -> None:
        self.last = torch.zeros_like(like)

    def absorb(self, arrival: Arrival) -> bool:
        self.last = arrival.update.sign()
        return True

    def direction(self) -> Vector:
        return self.last


def test_a_method_or_rule_without_the_base_class_gets_one_line_that_names_it(quadratic: tasks.Quadratic) -> None:
    class Duck:
        def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
            return SignRule(like)

    class DuckRule:
        absorb, direction = SignRule.absorb, SignRule.direction

    class BuildsDucks(SignDescent):
        def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Any:
            return DuckRule()

    with pytest.raises(InvalidInput, match="allowed: a method's settings .* derive from acefl.Method"):
        run_of(quadratic, Duck())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"rule is a DuckRule; allowed: an acefl.Rule \(class DuckRule\("):
        run_of(quadratic, BuildsDucks())


def test_somebodys_own_rule_runs_and_is_recorded(quadratic: tasks.Quadratic, tmp_path: Path) -> None:
    run = run_of(quadratic, SignDescent(), out=tmp_path / "run")
    assert run.final["gap"] < run.metrics[0]["gap"]
    again = acefl.load(tmp_path / "run")
    assert (again.config["method"], again.config["label"], again.config["rule"]) == ("SignDescent", "SignDescent", {})
    assert again.history.equals(run.history)


def test_the_config_says_what_made_the_run(quadratic: tasks.Quadratic) -> None:
    run = run_of(quadratic, ACED(tau=7), seed=3)
    config = json.loads(json.dumps(run.config))
    assert tasks.build(config["task"]).describe() == quadratic.describe()
    assert Scenario(**config["scenario"]) == SLOW
    assert Stop(**config["stop"]) == Stop(arrivals=100)
    assert (config["method"], config["label"], config["rule"]["tau"]) == ("ACED", "ACED(tau=7)", 7)
    assert (config["lr"], config["seed"], config["clients"], config["dim"]) == (0.05, 3, N, 4)
    assert config["objective"] == "gap"
    again = simulate(
        tasks.build(config["task"]),
        ACED(**config["rule"]),
        lr=config["lr"],
        scenario=Scenario(**config["scenario"]),
        stop=Stop(**config["stop"]),
        seed=config["seed"],
    )
    assert torch.equal(again.model, run.model)


def test_a_numpy_seed_is_a_seed(quadratic: tasks.Quadratic) -> None:
    assert torch.equal(run_of(quadratic, seed=np.int64(5)).model, run_of(quadratic, seed=5).model)


def test_a_saved_run_is_the_run(quadratic: tasks.Quadratic, tmp_path: Path) -> None:
    run = run_of(quadratic, out=tmp_path / "run")
    again = acefl.load(tmp_path / "run")
    assert torch.equal(again.model, run.model)
    assert again.history.equals(run.history)
    assert again.participation == run.participation


# --- observers --------------------------------------------------------------------------------------------------


class Watching:
    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        self.steps: list[int] = []
        self.rows = 0
        self.clients = 0

    def started(self, simulation: Training) -> None:
        self.clients = simulation.task.clients

    def arrived(self, arrival: Arrival, reason: str) -> None:
        self.heard.append((arrival.client, reason))

    def stepped(self, step: Step, server: Server) -> None:
        self.steps.append(step.version)

    def evaluated(self, row: dict[str, float]) -> None:
        self.rows += 1
        row["evaluation"] = self.rows

    def per_client(self) -> dict[str, list[float]]:
        return {"twice": [2.0 * client for client in range(self.clients)]}


def test_an_observer_sees_everything_and_changes_nothing(quadratic: tasks.Quadratic) -> None:
    watching = Watching()
    run = run_of(quadratic, ACE(), evaluations=5, observers=[watching])
    assert [client for client, _ in watching.heard] == run.events["client"].tolist()
    assert watching.steps[-1] == run.steps
    assert watching.steps == sorted(watching.steps)
    assert run.history["evaluation"].tolist() == [1, 2, 3, 4, 5, 6]
    assert [row["twice"] for row in run.clients] == [2.0 * client for client in range(N)]
    assert torch.equal(run.model, run_of(quadratic, ACE(), evaluations=5).model)


# --- bad ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [30.0, 1e6, 1e30])
@pytest.mark.parametrize("rule", [ASGD(), ACE(), FedBuff(buffer=3), CA2FL(buffer=3)])
def test_divergence_is_noticed_ends_the_run_and_is_recorded(
    quadratic: tasks.Quadratic, rule: Any, lr: float, tmp_path: Path
) -> None:
    run = run_of(quadratic, rule, lr=lr, stop=Stop(arrivals=20_000), evaluations=400, out=tmp_path / "run")
    assert run.diverged
    assert run.arrivals < 20_000
    assert run.final["gap"] > 1e6 or math.isnan(run.final["gap"])
    assert acefl.load(tmp_path / "run").diverged


class OneBrokenClient(tasks.Quadratic):
    """Client 3 sends what is no number; its data are fine."""

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        gradients = super().updates(models, clients, keys)
        gradients[torch.tensor(clients) == 3] = math.nan
        return gradients


@pytest.mark.parametrize("rule", [ASGD(), ACE()])
def test_a_client_that_sends_no_numbers_is_refused_and_the_others_learn(rule: Any) -> None:
    task = OneBrokenClient(N, 4, heterogeneity=1.0, noise=0.2, seed=0)
    run = run_of(task, rule, stop=Stop(arrivals=300), scenario=Scenario(), evaluations=1)
    assert run.arrivals == 300
    assert not run.diverged
    assert run.participation[3] == 0
    assert run.refused == {"non-finite": len(run.events) - 300}
    assert set(run.events["client"][~run.events["accepted"]]) == {3}
    assert run.final["gap"] < run.metrics[0]["gap"]


def test_data_without_a_finite_loss_are_refused_by_client() -> None:
    clients = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(5)]
    clients[3][0][:] = math.nan
    task = TorchTask(nn.Linear(2, 1), nn.MSELoss(), clients, compute="one-by-one")
    with pytest.raises(
        InvalidInput, match="client_loss is not finite at the starting model; clients with such data: 3$"
    ):
        run_of(task)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0; allowed: a finite number above 0"),
        ({"lr": math.nan}, "lr is nan; allowed"),
        ({"lr": 1e300}, r"lr is 1e\+300; allowed: at most 3.4e\+38"),
        ({"evaluations": 0}, "evaluations is 0; allowed: at least 1"),
        ({"scenario": Scenario(concurrency=11)}, "concurrency is 11; allowed: at most the number of clients, 10"),
        ({"scenario": Scenario(trace="nowhere.csv")}, "cannot read trace nowhere.csv"),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_written(
    quadratic: tasks.Quadratic, tmp_path: Path, settings_: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_of(quadratic, out=tmp_path / "run", **settings_)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("slip", "complaint"),
    [
        ({"rule": ACE}, r"rule is 'ACE'; allowed: .* parentheses"),
        ({"stop": 100}, r"stop is 100; allowed: an acefl.Stop"),
        ({"scenario": {"spread": 3.0}}, r"allowed: an acefl.Scenario"),
        ({"task": {"name": "digits"}}, r"allowed: a task such as"),
        ({"lr": None}, "lr is None; allowed: a finite number above 0"),
        ({"lr": "0.1"}, "lr is '0.1'; allowed: a finite number above 0"),
        ({"optimizer": Momentum}, "optimizer is 'Momentum'; allowed: .* with parentheses"),
        ({"optimizer": "Momentum"}, "optimizer is 'Momentum'; allowed: settings such as"),
        ({"schedule": Cosine}, "schedule is 'Cosine'; allowed: .* with parentheses"),
        ({"norm_limit": 10.0}, r"norm_limit is 10.0; allowed: an acefl.NormLimit"),
        ({"norm_limit": NormLimit}, r"norm_limit is 'NormLimit'; allowed: an acefl.NormLimit"),
        ({"observers": Observer()}, "observers is .*; allowed: a list of observers"),
        ({"observers": [Observer]}, "observers is .*; allowed: a list of observers"),
        ({"checkpoint": 100, "out": "nowhere"}, r"checkpoint is 100; allowed: an acefl.Every such as"),
    ],
)
def test_common_slips_get_one_clear_line(
    slip: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, Any] = {"task": tasks.quadratic(clients=3, dim=2), "rule": ACE(), "lr": 0.1, **slip}
    with pytest.raises(InvalidInput, match=complaint):
        simulate(arguments.pop("task"), arguments.pop("rule"), **arguments)
    assert list(tmp_path.iterdir()) == []
