"""The same arrivals through a grid, a script and the simulator end in the same model, bit for bit."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from tests.fleets.flower.fake_grid import FIRST_NODE, AtOnce, FakeGrid, ticking

from acefl import (
    ACE,
    ACED,
    AREA,
    ASGD,
    CA2FL,
    FADAS,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFa,
    RingleaderASGD,
    Scenario,
    Server,
    Stop,
    simulate,
    tasks,
)
from acefl.core.loop import run
from acefl.core.rule import Method, Upload
from acefl.core.types import Vector
from acefl.fleets.flower.client import answer
from acefl.fleets.flower.fleet import FlowerFleet, Wires
from acefl.fleets.flower.records import ModelLayout
from acefl.fleets.scripted import ScriptedFleet
from acefl.fleets.simulated import work_key
from acefl.runs.record import Run
from acefl.runs.replay import replay
from acefl.runs.saving import run_to_end
from acefl.runs.training import Training
from acefl.tasks.base import Task

SEED, LR, CLIENTS = 3, 0.2, 6
RULES: list[Method] = [
    *(ACE(), ACE(warmup="seen"), ACE(table="int8"), ACED(tau=4), CA2FL(buffer=3), FedBuff(buffer=3), ASGD()),
    *(FedAsync(), AREA(buffer=2), FedFa(window=3), RingleaderASGD(), FADAS(buffer=3, threshold=2), FedAvg()),
]


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.digits(clients=CLIENTS, alpha=0.3, model="softmax", seed=SEED)


class KeyedClient:
    """Computes what the simulator's clients compute."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._visits = [0] * task.clients

    def work(self, client: int, visit: int, model: Vector) -> Vector:
        return self._task.updates(model.unsqueeze(0), [client], [work_key(SEED, client, visit)])[0]

    def __call__(self, message: Message, context: Context) -> Message:
        client = context.node_id - FIRST_NODE
        model = torch.from_numpy(message.content["arrays"]["w"].numpy())
        visit, self._visits[client] = self._visits[client], self._visits[client] + 1
        return answer(message, context, self.work(client, visit, model))


def turns(recorded: Run) -> list[list[tuple[int, int]]]:
    """Who arrived together, on which versions."""
    return [
        list(zip(together["client"], together["trained_on"], strict=True))
        for _, together in recorded.events.groupby("time", sort=True)
    ]


def last_sent(recorded: Run) -> dict[int, int]:
    """The version that each client was sent last, answered or not."""
    return {int(row["client"]): int(row["last_sent"]) for row in recorded.clients}


def through_grid(task: Task, rule: Method, recorded: Run, wires: Wires | None = None) -> Server:
    model = task.initial()
    layout = ModelLayout.of(ArrayRecord({"w": Array(model.numpy())}))
    script = [[(int(client), None) for client, _ in turn] for turn in turns(recorded)]
    grid = FakeGrid(KeyedClient(task), task.clients, script)
    differences = rule.uploads is Upload.CHANGE
    fleet = FlowerFleet(grid, layout, wires, differences=differences, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(task.clients)
    server = Server(
        model,
        rule.build(task.clients, model),
        LR,
        task.clients,
        on_arrival=lambda a, reason: fleet.acknowledge(a, reason),
    )
    for _ in run(server, fleet, Stop(arrivals=recorded.arrivals)):
        assert not grid.over, "the script has ended before the run"
    return server


def through_script(
    task: Task, rule: Method, script: list[list[tuple[int, int]]], last_sent: dict[int, int] | None = None
) -> Server:
    model = task.initial()
    server = Server(model, rule.build(task.clients, model), LR, task.clients)
    fleet = ScriptedFleet(script, KeyedClient(task).work, last_sent)
    for _ in run(server, fleet, Stop(arrivals=sum(map(len, script)))):
        pass
    return server


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_grid_script_and_simulator_agree(task: Task, rule: Method) -> None:
    scenario = Scenario(delay=2.0, spread=8.0)
    simulated = simulate(task, rule, lr=LR, scenario=scenario, stop=Stop(arrivals=60), seed=SEED, evaluations=1)
    scripted = through_script(task, rule, turns(simulated), last_sent(simulated))
    flower = through_grid(task, rule, simulated)
    assert torch.equal(scripted.model, simulated.model)
    assert torch.equal(flower.model, simulated.model)
    assert flower.version == scripted.version == simulated.steps
    assert flower.participation == simulated.participation
    assert not flower.refused


# FedAvg sends no model to who arrives, and FedFa's window has an order even within a step: both are tested above.
AT_ONCE = [rule for rule in RULES if not isinstance(rule, FedAvg | FedFa)]


@pytest.mark.parametrize("rule", AT_ONCE, ids=repr)
def test_answers_that_wait_together_make_one_step(task: Task, rule: Method) -> None:
    """As under the simulator's tick clock. Within a step a grid hands out answers in the order their models were sent,
    so here the simulator agrees within rounding, and the script, given that order, bit for bit."""
    scenario = Scenario(clock="tick", delay=2.0, spread=8.0)
    simulated = simulate(task, rule, lr=LR, scenario=scenario, stop=Stop(arrivals=60), seed=SEED, evaluations=1)
    script = turns(simulated)
    assert max(map(len, script)) > 1, "no two arrivals came together"
    flower = through_grid(task, rule, simulated)
    sent: dict[int, int] = {}  # client -> its place in the last dispatch
    for number, turn in enumerate(script):
        turn.sort(key=lambda event: (sent.get(event[0], 0), event[0]))
        sent.update({client: number + 1 for client, _ in turn})
    scripted = through_script(task, rule, script, last_sent(simulated))
    assert torch.equal(flower.model, scripted.model)
    assert torch.allclose(flower.model, simulated.model, atol=1e-5)
    assert flower.version == simulated.steps


def test_differences_of_clients_give_the_model_of_the_table(task: Task) -> None:
    """Client-held ACE forms the same sum in another order: equal within the rounding of float32."""
    scenario = Scenario(delay=2.0, spread=8.0)
    simulated = simulate(task, ACE(), lr=LR, scenario=scenario, stop=Stop(arrivals=60), seed=SEED, evaluations=1)
    held = through_grid(task, ACE(variant="client-held"), simulated)
    assert held.version == simulated.steps
    assert torch.allclose(held.model, simulated.model, atol=1e-5)
    assert not torch.equal(held.model, task.initial())


@pytest.mark.parametrize("encoding", ["bf16", "int8"])
def test_a_lossy_wire_is_a_little_noise(task: Task, encoding: str) -> None:
    scenario = Scenario(delay=2.0, spread=8.0)
    simulated = simulate(task, ACE(), lr=LR, scenario=scenario, stop=Stop(arrivals=60), seed=SEED, evaluations=1)
    lossy = through_grid(task, ACE(), simulated, Wires(uplink=encoding, downlink=encoding))
    moved = float((simulated.model - task.initial()).norm())
    assert 0 < float((lossy.model - simulated.model).norm()) < 0.05 * moved


def test_a_federations_record_replayed_with_its_own_method_gives_its_model(task: Task) -> None:
    scenario = Scenario(clock="tick", delay=2.0, spread=8.0)
    simulated = simulate(task, ACED(tau=4), lr=LR, scenario=scenario, stop=Stop(arrivals=60), seed=SEED, evaluations=1)
    model = task.initial()
    layout = ModelLayout.of(ArrayRecord({"w": Array(model.numpy())}))
    grid = FakeGrid(KeyedClient(task), task.clients, [[(int(c), None) for c, _ in turn] for turn in turns(simulated)])
    fleet = FlowerFleet(grid, layout, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(task.clients)
    config = {"seed": SEED, "task": task.describe(), "scenario": {"clock": "wall"}}
    made = run_to_end(Training(ACED(tau=4), fleet, model=model, lr=LR, stop=Stop(arrivals=60), config=config))
    assert torch.equal(replay(made, ACED(tau=4)).model, made.model)
