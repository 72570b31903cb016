"""Runs whose clients on one model version are computed together are the runs in which each is computed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from acefl import ACE, Scenario, Stop, simulate
from acefl.core.rule import Method
from acefl.core.types import Arrival, Vector
from acefl.fleets.simulated import simulated_fleet
from acefl.rules import FedAvg, FedBuff
from acefl.tasks import TorchTask
from acefl.tasks.base import sharing
from acefl.tasks.own import OwnTask

CLIENTS = 30
SETTINGS: dict[str, tuple[Method, Scenario]] = {
    "tick": (ACE(), Scenario(clock="tick", delay=3.0, spread=5.0)),
    "tick-churn": (ACE(), Scenario(clock="tick", delay=3.0, spread=5.0, dropout=0.4, dropout_at=0.3, rejoin_at=0.6)),
    "buffer": (FedBuff(buffer=10), Scenario(clock="event", spread=3.0)),
    "rounds": (FedAvg(), Scenario(spread=3.0)),
}


class Counting(TorchTask):
    """How many clients its shared calls were of."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.shared: list[int] = []

    def shared_updates(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        self.shared.append(len(clients))
        return super().shared_updates(model, clients, keys)


def task(compute: str, kind: Any = Counting) -> Any:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(9, 6, generator=draw), torch.randint(0, 3, (9,), generator=draw)) for _ in range(CLIENTS)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    return kind(model, nn.CrossEntropyLoss(), data, batch=4, ridge=0.01, compute=compute)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_is_the_one_of_each_client_alone(setting: str) -> None:
    rule, scenario = SETTINGS[setting]
    several, alone = task("shared"), task("one-by-one")
    one, again, plain = (
        simulate(of, rule, lr=0.1, scenario=scenario, stop=Stop(arrivals=300)) for of in (several, several, alone)
    )
    assert one.config["compute"] == {"strategy": "together", "at_once": 64, "shared": 20}
    assert sum(several.shared) > 2 * 150  # of two runs; in each at least half
    assert 4 <= min(several.shared) <= max(several.shared) <= 20
    assert alone.shared == []
    assert torch.equal(one.model, again.model)
    assert one.events.equals(plain.events)
    torch.testing.assert_close(one.model, plain.model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", ["tick", "buffer"])
def test_a_saved_fleet_goes_on_bit_for_bit(setting: str) -> None:
    built, (_, scenario) = task("shared"), SETTINGS[setting]
    steps_every = 10 if setting == "buffer" else 1

    def drive(fleet: Any, model: Vector, turns: range) -> Vector:
        for turn in turns:
            fleet.dispatch(model, turn // steps_every, newcomers_only=False)
            arrived = [event.update for event in fleet.next() if isinstance(event, Arrival)]
            if arrived and turn % steps_every == steps_every - 1:
                model = model - 0.1 * torch.stack(arrived).mean(0)
        return model

    fleet, again = simulated_fleet(built, scenario, 3), simulated_fleet(built, scenario, 3)
    model = drive(fleet, built.initial(), range(25))
    again.load_state_dict(fleet.state_dict())
    shared_before = len(built.shared)
    ended = [drive(one, model, range(25, 80)) for one in (fleet, again)]
    assert len(built.shared) > shared_before
    assert torch.equal(*ended)


def test_what_has_updates_of_its_own_does_not_share() -> None:
    class Clipped(TorchTask):
        def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
            return super().updates(models, clients, keys).clamp(-1e-3, 1e-3)

    assert sharing(task("shared")) is not None
    clipped = task("shared", Clipped)
    assert sharing(clipped) is None
    run = simulate(clipped, FedAvg(), lr=0.1, stop=Stop(arrivals=90))
    assert (run.model - clipped.initial()).abs().max() <= 3.1 * 0.1 * 1e-3  # three rounds


def test_a_task_made_by_name_shares_as_what_it_is_made_of() -> None:
    inner = task("shared")
    own = OwnTask(inner, "somewhere:make")
    plain = simulate(inner, FedAvg(), lr=0.1, stop=Stop(arrivals=90))
    inner.shared.clear()
    run = simulate(own, FedAvg(), lr=0.1, stop=Stop(arrivals=90))
    assert inner.shared
    assert torch.equal(run.model, plain.model)
