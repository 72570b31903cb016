"""Learning rates over a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from acefl import (
    ASGD,
    Arrival,
    Constant,
    Cosine,
    Every,
    FedAsync,
    FedAvg,
    FedBuff,
    InvalidInput,
    MaleniaSGD,
    Scenario,
    Server,
    Sqrt,
    Step,
    Stop,
    WarmUp,
    load,
    resume,
    simulate,
    tasks,
)
from acefl.core.schedules import SCHEDULES, from_record, parse, per_step

TASK = tasks.quadratic(clients=4, dim=3, noise=0.0, seed=0)
STOP = Stop(arrivals=100)


def test_the_shapes() -> None:
    cosine = Cosine(floor=0.1, warmup=0.2).over(4, STOP, 1)
    warmup = WarmUp(share=0.5).over(4, STOP, 1)
    assert [Constant().over(4, STOP, 1)(share) for share in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    assert [warmup(share) for share in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert [cosine(share) for share in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1])


def test_sqrt_is_the_paper_s_rate() -> None:
    assert Sqrt().over(100, Stop(steps=400), 1)(0.7) == 0.5
    assert Sqrt().over(100, Stop(arrivals=4000), 10)(0.0) == 0.5
    with pytest.raises(InvalidInput, match="needs the number of steps"):
        Sqrt().over(100, Stop(time=9.0), 1)
    with pytest.raises(InvalidInput, match="with steps alone where a step takes now more arrivals, now fewer"):
        Sqrt().over(100, Stop(arrivals=4000), None)


@pytest.mark.parametrize(
    ("rule", "clock", "expected"),
    [
        (ASGD(), "event", 1),
        (FedBuff(buffer=7), "event", 7),
        (FedBuff(buffer=7), "tick", None),
        (FedAvg(), "event", None),
        (MaleniaSGD(), "event", None),
    ],
)
def test_a_step_takes_a_known_number_of_arrivals_or_none_is_named(rule: Any, clock: str, expected: int | None) -> None:
    assert per_step(rule, clock) == expected


@pytest.mark.parametrize("stop", [Stop(arrivals=60), Stop(steps=60), Stop(time=20.0)])
def test_a_run_s_rates_are_those_of_the_share_of_its_budget_spent_before_each_step(stop: Stop) -> None:
    """One client, whose gradient is known: each step's rate can be read off the models."""
    task = tasks.quadratic(clients=1, dim=2, noise=0.0, seed=0)
    models = [task.initial()]

    class Notes:
        def arrived(self, arrival: Arrival, reason: str) -> None: ...

        def evaluated(self, row: dict[str, float]) -> None: ...

        def stepped(self, step: Step, server: Server) -> None:
            models.append(server.model.clone())
            spent.append(stop.progress(Step(step.arrivals - 1, step.version - 1, step.time, False)))

    spent: list[float] = []
    simulate(task, ASGD(), lr=0.2, scenario=Scenario(), stop=stop, schedule=Cosine(), observers=[Notes()])
    assert len(spent) > 10
    factor = Cosine().over(1, stop, 1)
    for before, after, share in zip(models, models[1:], spent, strict=False):
        gradient = task.updates(before.unsqueeze(0), [0], [0])[0]
        torch.testing.assert_close(after, before - 0.2 * factor(min(share, 1.0)) * gradient)


def test_a_constant_schedule_changes_nothing_and_mixing_methods_have_their_clients_rate_scheduled() -> None:
    plain = simulate(TASK, FedBuff(buffer=2), lr=0.1, stop=STOP)
    assert torch.equal(simulate(TASK, FedBuff(buffer=2), lr=0.1, stop=STOP, schedule=Constant()).model, plain.model)
    still = simulate(TASK, FedAsync(), lr=0.1, stop=Stop(arrivals=20), schedule=WarmUp(share=0.9999))
    moved = simulate(TASK, FedAsync(), lr=0.1, stop=Stop(arrivals=20))
    assert (still.model - TASK.initial()).norm() < (moved.model - TASK.initial()).norm()


def test_a_run_that_is_interrupted_goes_on_bit_for_bit_and_is_recorded(tmp_path: Path) -> None:
    def stop_half_way(spent: float, *_: object) -> None:
        if spent > 0.5:
            raise KeyboardInterrupt

    schedule, every = Cosine(warmup=0.3), Every(arrivals=11)
    whole = simulate(TASK, ASGD(), lr=0.1, stop=STOP, schedule=schedule)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        simulate(TASK, ASGD(), lr=0.1, stop=STOP, schedule=schedule, out=out, checkpoint=every, progress=stop_half_way)
    assert torch.equal(resume(tmp_path / "run").model, whole.model)
    assert from_record(load(tmp_path / "run").config["schedule"]) == schedule


def test_named_by_people() -> None:
    assert parse("cosine(warmup=0.1)") == Cosine(warmup=0.1)
    assert {parse(name) for name in SCHEDULES} == {Constant(), Sqrt(), WarmUp(), Cosine()}
    with pytest.raises(InvalidInput, match="unknown schedule 'linear'; allowed: Constant, Sqrt, WarmUp, Cosine"):
        parse("linear")
    with pytest.raises(InvalidInput, match="share is 1"):
        WarmUp(share=1)
    with pytest.raises(InvalidInput, match="floor is 2"):
        Cosine(floor=2)
    assert math.isclose(Cosine().over(1, STOP, 1)(1.5), 0.0, abs_tol=1e-12)
