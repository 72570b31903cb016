"""Server optimizers against their formulas, and in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.rules.oracles import NesterovOracle

from acefl import (
    ACE,
    SGD,
    Adam,
    Every,
    FedBuff,
    InvalidInput,
    Momentum,
    Nesterov,
    Scenario,
    Stop,
    Yogi,
    load,
    resume,
    simulate,
    tasks,
)
from acefl.core.optimizers import OPTIMIZERS, Optimizer, from_record, parse

START = torch.linspace(-1, 1, 7)
GRADIENTS = [torch.sin(torch.arange(7) * (1.0 + k)) * 3**k for k in range(6)]


def followed(optimizer: Optimizer, lr: float = 0.1) -> np.ndarray:
    model, stepper = START.clone(), optimizer.build(START)
    for number, gradient in enumerate(GRADIENTS):
        if number == 3:
            stepper, old = optimizer.build(START), stepper
            stepper.load_state_dict(old.state_dict())
        stepper.step(model, gradient, lr)
    numbers: np.ndarray = model.double().numpy()
    return numbers


def test_sgd_and_momentum() -> None:
    w, u = START.double().numpy(), np.zeros(7)
    plain = w.copy()
    for gradient in GRADIENTS:
        g = gradient.double().numpy()
        plain = plain - 0.1 * g
        u = 0.8 * u + g
        w = w - 0.1 * u
    np.testing.assert_allclose(followed(SGD()), plain, rtol=1e-5)
    np.testing.assert_allclose(followed(Momentum(beta=0.8)), w, rtol=1e-5)


@pytest.mark.parametrize(("period", "c"), [(1, 0.0), (2, 0.5), (4, 0.1)])
def test_nesterov_that_waits(period: int, c: float) -> None:
    w, oracle = START.double().numpy(), NesterovOracle(0.8, period, c)
    for gradient in GRADIENTS:
        w = oracle.step(w, gradient.double().numpy(), 0.1)
    np.testing.assert_allclose(followed(Nesterov(0.8, period, c)), w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["adam", "amsgrad", "yogi"])
def test_adaptive_ones(kind: str) -> None:
    w, m, v = START.double().numpy(), np.zeros(7), np.full(7, 0.05**2)
    largest = v
    for gradient in [g.double().numpy() for g in GRADIENTS]:
        m = 0.7 * m + 0.3 * gradient
        if kind == "yogi":
            v = v - 0.2 * gradient**2 * np.sign(v - gradient**2)
        else:
            v = 0.8 * v + 0.2 * gradient**2
        largest = np.maximum(largest, v)
        w = w - 0.1 * m / (np.sqrt(largest if kind == "amsgrad" else v) + 0.05)
    built: dict[str, Optimizer] = {
        "adam": Adam(0.7, 0.8, 0.05),
        "amsgrad": Adam(0.7, 0.8, 0.05, amsgrad=True),
        "yogi": Yogi(0.7, 0.8, 0.05),
    }
    np.testing.assert_allclose(followed(built[kind]), w, rtol=1e-5, atol=1e-6)


def run(**more: Any) -> Any:
    task = tasks.quadratic(clients=5, dim=40, seed=1)
    settings: dict[str, Any] = {"lr": 0.02, "scenario": Scenario(spread=5.0), "stop": Stop(arrivals=200), "seed": 2}
    return simulate(task, more.pop("rule", ACE()), **{**settings, **more})


def test_sgd_is_what_a_server_does_anyway() -> None:
    torch.testing.assert_close(run(optimizer=SGD()).model, run().model)


@pytest.mark.parametrize("optimizer", [Momentum(), Nesterov(period=3, c=0.2), Adam(), Adam(amsgrad=True), Yogi()])
def test_a_run_that_is_interrupted_goes_on_bit_for_bit_and_is_recorded(optimizer: Any, tmp_path: Path) -> None:
    whole = run(optimizer=optimizer, rule=FedBuff(buffer=3))

    def stop_half_way(spent: float, *_: object) -> None:
        if spent > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            optimizer=optimizer,
            rule=FedBuff(buffer=3),
            out=tmp_path / "run",
            checkpoint=Every(arrivals=30),
            progress=stop_half_way,
        )
    assert torch.equal(resume(tmp_path / "run").model, whole.model)
    recorded = load(tmp_path / "run").config["optimizer"]
    assert from_record(recorded) == optimizer


def test_named_by_people() -> None:
    assert parse("adam(beta2=0.9, amsgrad=True)") == Adam(beta2=0.9, amsgrad=True)
    assert {parse(name) for name in OPTIMIZERS} == {SGD(), Momentum(), Nesterov(), Adam(), Yogi()}
    with pytest.raises(InvalidInput, match="unknown optimizer 'Lion'; allowed: SGD, Momentum, Nesterov, Adam, Yogi"):
        parse("Lion")
    with pytest.raises(InvalidInput, match="Momentum has no setting 'gamma'; allowed: beta"):
        parse("Momentum(gamma=1)")
    with pytest.raises(InvalidInput, match="beta is 1"):
        Momentum(beta=1)
    with pytest.raises(InvalidInput, match="epsilon is 0"):
        Yogi(epsilon=0)
