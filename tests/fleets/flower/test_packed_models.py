"""A node whose ClientApp has the mod gets models as one vector, small ones within a record: fewer requests, the same
numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from tests.fleets.flower.fake_grid import AtOnce, FakeGrid, ticking

from acefl import ASGD, Stop
from acefl.core.loop import run
from acefl.core.server import Server
from acefl.core.types import Vector
from acefl.fleets.flower import client, records
from acefl.fleets.flower.fleet import FlowerFleet, Wires
from acefl.fleets.flower.records import ModelLayout
from acefl.flower import answer

NODES, ARRIVALS = 2, 8
SHAPES = {"a": (3, 4), "b": (4,), "c": (2, 2, 2)}


def start(dtype: str) -> ArrayRecord:
    draw = np.random.default_rng(0)
    return ArrayRecord({name: Array(draw.standard_normal(shape).astype(dtype)) for name, shape in SHAPES.items()})


def arrays_of(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def by_mod(message: Message, context: Context) -> Message:
    """Trains, and replies with arrays as for FedAvg."""
    trained = {name: (0.9 * values).astype(values.dtype) for name, values in arrays_of(message).items()}
    return Message(RecordDict({"arrays": ArrayRecord({n: Array(v) for n, v in trained.items()})}), reply_to=message)


def by_answer(message: Message, context: Context) -> Message:
    """The same work, told as a gradient: such a ClientApp reads the message's own arrays."""
    moved = {name: values - (0.9 * values).astype(values.dtype) for name, values in arrays_of(message).items()}
    return answer(message, context, {name: torch.from_numpy(values).float() for name, values in moved.items()})


class Noting(FakeGrid):
    """Notes every message that is pushed as (its arrays, its objects, each of which is a request on either side)."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        self.pushed = [
            *getattr(self, "pushed", []),
            *((list(m.content.array_records.get("arrays", ())), len(get_all_nested_objects(m))) for m in pushed),
        ]
        return super().push_messages(pushed)


def train(client_app: object, dtype: str, wires: Wires | None = None) -> tuple[Vector, list[tuple[list[str], int]]]:
    script = [[(number % NODES, None)] for number in range(10 * ARRIVALS)]
    grid = Noting(client_app, NODES, script)  # type: ignore[arg-type]
    layout = ModelLayout.of(start(dtype))
    fleet = FlowerFleet(grid, layout, wires, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(NODES)
    model = layout.flat(start(dtype))
    server = Server(model, ASGD().build(NODES, model), 0.5, NODES, on_arrival=lambda a, why: fleet.acknowledge(a, why))
    for _ in run(server, fleet, Stop(arrivals=ARRIVALS)):
        assert not grid.over
    assert not server.refused
    return server.model, grid.pushed


@pytest.mark.parametrize("within_a_record", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_node_that_has_the_mod_gets_one_vector_and_the_model_is_the_same_bit_for_bit(
    dtype: str, within_a_record: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not within_a_record:
        monkeypatch.setattr(records, "INLINE", 4)
        monkeypatch.setattr(client, "INLINE", 4)
    packed, messages = train(by_mod, dtype)
    plain, others = train(by_answer, "float32")
    assert all(names == list(SHAPES) for names, _ in messages[:NODES]), "nobody has shown yet that it unpacks"
    assert all(names == ([] if within_a_record else ["acefl"]) for names, _ in messages[NODES:])
    assert all(names == list(SHAPES) for names, _ in others), "a ClientApp without the mod reads its own arrays"
    spared = 1 + 2 * len(SHAPES) if within_a_record else 2 * (len(SHAPES) - 1)  # a record; an array and its chunk each
    assert {count for _, count in messages[NODES:]} == {others[0][1] - spared}
    if dtype == "float32":
        assert torch.equal(packed, plain)
    else:
        assert torch.allclose(packed, plain, atol=1e-5)


def test_a_client_answers_a_server_of_before_with_an_array() -> None:
    """Its order says nothing of vectors within records."""
    told = {"run": "r", "task": 0, "version": 0, "uplink": "fp32", "downlink": "fp32", "differences": False, "base": -1}
    content = RecordDict({"arrays": start("float32"), "acefl": ConfigRecord({**told, "trained": False, "layout": ""})})
    order = records.Order.read(content)
    assert not order.inline
    question = Message(content, 1, "train")
    question.metadata.__dict__["_message_id"] = "1"
    reply = by_answer(question, Context(1, 1, {}, RecordDict(), {}))
    assert "update" in reply.content.array_records["update"]
    assert "update" not in reply.content["acefl"]


def test_arrays_that_cannot_hold_the_server_s_numbers_are_not_packed() -> None:
    """A float16 array is rounded before the client trains: from a packed vector it would start elsewhere."""
    _, messages = train(by_mod, "float16")
    assert all(names == list(SHAPES) for names, _ in messages)
