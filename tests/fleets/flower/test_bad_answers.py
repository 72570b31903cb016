"""Bad answers never change the result: the accepted arrivals alone, from a script, give the same model bit for bit."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from hypothesis import given, settings
from tests.fleets.flower.fake_grid import FIRST_NODE, AtOnce, FakeGrid, Spoil, ticking

from acefl import ACE, ACED, ASGD, FedBuff, Stop
from acefl.core.loop import run
from acefl.core.rule import Method, Upload
from acefl.core.server import Server
from acefl.core.types import Vector
from acefl.fleets.flower.client import answer
from acefl.fleets.flower.fleet import SPARE, FlowerFleet
from acefl.fleets.flower.records import ORDER, UPDATE, ModelLayout
from acefl.fleets.flower.roster import EverybodyFails
from acefl.fleets.scripted import ScriptedFleet
from acefl.runs.training import Training

CLIENTS, DIM, LR = 4, 7, 0.1
START = torch.linspace(-1, 1, DIM)
OPTIMA = torch.randn(CLIENTS + 1, DIM, generator=torch.Generator().manual_seed(4))


def work(client: int, visit: int, model: Vector) -> Vector:
    return model - OPTIMA[client]


def client_app(message: Message, context: Context) -> Message:
    model = torch.from_numpy(message.content["arrays"]["w"].numpy())
    return answer(message, context, work(context.node_id - FIRST_NODE, 0, model))


def spoiler(change: Callable[[RecordDict], None]) -> Spoil:
    def spoil(question: Message, good: Message) -> Message:
        change(good.content)
        return good

    return spoil


def update(values: Vector) -> ArrayRecord:
    return ArrayRecord({UPDATE: Array("fp32", (values.numel(),), "acefl", values.numpy().tobytes())})


def as_array(content: RecordDict, array: ArrayRecord) -> None:
    """In place of an update within the order's record, one beside it."""
    content[ORDER] = ConfigRecord({name: value for name, value in content[ORDER].items() if name != UPDATE})
    content[UPDATE] = array


def set_update(values: Vector) -> Spoil:
    return spoiler(lambda content: as_array(content, update(values)))


def set_inline(values: Vector) -> Spoil:
    return set_order(update=values.numpy().tobytes())


def set_order(**changed: object) -> Spoil:
    return spoiler(lambda content: content.__setitem__(ORDER, ConfigRecord({**content[ORDER], **changed})))


def error(code: int) -> Spoil:
    return lambda question, good: Message(Error(code, "made up"), reply_to=question)


def as_numpy(question: Message, good: Message) -> Message:
    as_array(good.content, ArrayRecord({UPDATE: Array(torch.ones(DIM).numpy())}))
    return good


def plain_reply(question: Message, good: Message) -> Message:
    """What a ClientApp replies that was written for Flower's own strategies."""
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(START.numpy())})}), reply_to=question)


BAD: dict[str, tuple[Spoil, str]] = {
    "too short": (set_update(torch.ones(DIM - 1)), "wrong-shape"),
    "too long": (set_update(torch.ones(DIM + 1)), "wrong-shape"),
    "another type": (as_numpy, "wrong-shape"),
    "not a number": (set_update(torch.full((DIM,), math.nan)), "non-finite"),
    "infinite": (set_update(torch.full((DIM,), -math.inf)), "non-finite"),
    "oversized": (set_update(torch.ones(SPARE)), "oversized"),
    "too short within the record": (set_inline(torch.ones(DIM - 1)), "wrong-shape"),
    "not a number within the record": (set_inline(torch.full((DIM,), math.nan)), "non-finite"),
    "oversized within the record": (set_inline(torch.ones(SPARE)), "oversized"),
    "text within the record": (set_order(update="1, 2, 3"), "no-update"),
    "of another run": (set_order(run="0123456789abcdef"), "foreign-run"),
    "of another task": (set_order(task=10**6), "foreign-task"),
    "of an earlier task": (set_order(task=-5), "foreign-task"),
    "of a future version": (set_order(version=10**6), "foreign-task"),
    "with a version that is text": (set_order(version="new"), "foreign-task"),
    "with a base nobody asked for": (set_order(base=3), "foreign-base"),
    "without an order": (spoiler(lambda content: content.pop(ORDER)), "no-update"),
    "without an update": (set_order(update=0), "no-update"),
    "for another strategy": (plain_reply, "no-update"),
    "of a ClientApp that raised": (error(2), ""),
    "of a node that is gone": (error(5), ""),
    "that expired": (error(3), ""),
}


class Federated:
    """A federation on a fake grid, and the log of what its server accepted."""

    def __init__(self, rule: Method, script: Sequence[Sequence[tuple[int, Spoil | None]]], clients: int = CLIENTS):
        layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
        self.grid = FakeGrid(client_app, clients, script)
        differences = rule.uploads is Upload.CHANGE
        self.fleet = FlowerFleet(self.grid, layout, differences=differences, pool=AtOnce(), clock=ticking(), least=0.0)
        self.fleet.wait_for(clients)
        self.federation = Training(
            rule, self.fleet, model=START, lr=LR, stop=Stop(arrivals=10_000), config={"task": {}, "scenario": {}}
        )
        self.server = self.federation.server

    def play(self) -> None:
        for _ in self.federation.advance():
            if self.grid.over:
                return

    def accepted(self) -> list[list[tuple[int, int]]]:
        """Who was accepted in each turn, and what it had trained on."""
        events = self.federation.events.frame()
        good = events[events["accepted"].astype(bool)]
        return [
            list(zip(turn["client"], turn["trained_on"], strict=True)) for _, turn in good.groupby("time", sort=True)
        ]


def from_script(rule: Method, turns: list[list[tuple[int, int]]], clients: int = CLIENTS) -> Server:
    server = Server(START, rule.build(clients, START), LR, clients)
    if turns:
        for _ in run(server, ScriptedFleet(turns, work), Stop(arrivals=sum(map(len, turns)))):
            pass
    return server


# ACED by the age of models: by dispatch, a client that is asked again after a bad answer has a new clock, rightly.
RULES = [ACE(warmup="seen"), ACED(tau=3, freshness="model", warmup="seen"), FedBuff(buffer=2), ASGD()]
answers = st.sampled_from([None, None, None, *BAD])
turns = st.lists(st.dictionaries(st.integers(0, CLIENTS - 1), answers, min_size=1), max_size=25)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=25)
@given(script=turns)
def test_bad_answers_never_change_the_result(rule: Method, script: list[dict[int, str | None]]) -> None:
    logging.disable(logging.WARNING)
    try:
        federated = Federated(rule, [[(c, how and BAD[how][0]) for c, how in turn.items()] for turn in script])
        with contextlib.suppress(EverybodyFails):
            federated.play()
    finally:
        logging.disable(logging.NOTSET)
    alone = from_script(rule, federated.accepted())
    assert torch.equal(federated.server.model, alone.model)
    assert federated.server.version == alone.version
    assert federated.server.participation == alone.participation


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_is_counted_logged_and_survived(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = BAD[kind]
    everybody: list[tuple[int, Spoil | None]] = [(client, None) for client in range(CLIENTS)]
    federated = Federated(ACE(), [everybody, [(0, spoil)], [(1, None)], [(0, None)]])
    federated.play()
    assert federated.server.participation == [2, 2, 1, 1]
    assert dict(federated.server.refused) == ({reason: 1} if reason else {})
    assert any("client 0" in record.message for record in caplog.records if record.levelno >= logging.WARNING)
    refused = federated.federation.events.frame().query("not accepted")
    assert list(refused["reason"]) == ([reason] if reason else [])


def test_an_answer_to_somebody_elses_message_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    def stray(question: Message, good: Message) -> Message:
        good.metadata.__dict__["_reply_to_message_id"] = "message-of-another-run"
        return good

    everybody: list[tuple[int, Spoil | None]] = [(client, None) for client in range(CLIENTS)]
    federated = Federated(ACE(), [everybody, [(0, stray)], [(1, None)]])
    federated.play()
    assert federated.fleet.foreign == 1
    assert federated.server.participation == [1, 2, 1, 1]


def test_an_app_that_never_works_ends_the_run_with_its_error() -> None:
    failing = [[(client, error(2)) for client in range(CLIENTS)] for _ in range(10)]
    with pytest.raises(EverybodyFails, match="every connected node failed 3 times in a row.*made up"):
        Federated(ACE(), failing).play()
