"""2,000 random histories of client-held ACE: the sum is always that of the clients' last gradients, and every upload is
accounted for.

Several answers come in one turn; some are lost, refused or expire; clients lose their memories, leave, return and join;
the server is killed, and resumed from an older checkpoint. Answers are made up where the fleet meets Flower's messages:
these cost milliseconds each. `test_coming_and_going` has fewer histories with real messages and real client code.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from tests.fleets.flower.fake_grid import FIRST_NODE, FakeGrid, ticking

from acefl import ACE, Stop
from acefl.core.types import Arrival, State, Vector
from acefl.fleets.flower.fleet import FlowerFleet, Wires
from acefl.fleets.flower.post import Post, Undelivered
from acefl.fleets.flower.records import NO_BASE, Answer, ModelLayout, Order, Refused
from acefl.runs.observers import Observer
from acefl.runs.training import Training

HISTORIES, PARTS, TURNS, STEADY, MOST_CLIENTS, DIM = 2000, 10, 7, 4, 5, 2
START = torch.zeros(DIM)
NOTHING = torch.zeros(DIM, dtype=torch.float64)
LAYOUT = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))


def _nodes_answer_themselves(*_: object) -> Message:
    raise AssertionError


@dataclass
class Memory:
    """What a client remembers of client-held ACE, as the documentation has it."""

    run: str = ""
    accepted: int = NO_BASE
    sent: int = NO_BASE
    up_to_accepted: Vector = NOTHING
    since: Vector = NOTHING

    def change(self, order: Order, gradient: Vector) -> tuple[int, Vector]:
        """The base and the update to send."""
        known = order.run == self.run and order.base != NO_BASE and order.base in (self.accepted, self.sent)
        base, before = NO_BASE, NOTHING
        if known:
            base, before = order.base, self.up_to_accepted + (self.since if order.base == self.sent else 0.0)
        update = (gradient.double() - before).float()
        self.run, self.accepted, self.sent = order.run, base, order.task
        self.up_to_accepted, self.since = before, update.double()
        return base, update


class Nodes(FakeGrid):
    """Clients that do as chance has it, and a ledger of what they computed and sent."""

    def __init__(self, chance: random.Random, nodes: int) -> None:
        super().__init__(_nodes_answer_themselves, nodes, ())
        self.chance = chance
        self.steady = False  # everybody is there and answers well
        self.memories = {client: Memory() for client in self.contexts}
        self.gradients: dict[tuple[str, int], Vector] = {}  # (run, task) -> what its client computed
        self.uploads: Counter[int] = Counter()
        self.asked: Counter[int] = Counter()
        self.silent: Counter[int] = Counter()  # tasks of which the server can know that nothing came of them
        self.failures: Counter[int] = Counter()  # in a row; three of everybody's would end the run, rightly

    def get_node_ids(self) -> Iterable[int]:
        chance, known = self.chance, list(self.memories)
        if self.steady:
            self.away.clear()
        elif chance.random() < 0.6:
            if chance.random() < 0.4:
                self.memories[chance.choice(known)] = Memory()
            if chance.random() < 0.3:
                self.away.add(chance.choice(known))
            if self.away and (len(self.away) == len(known) or chance.random() < 0.4):
                self.away.remove(chance.choice(sorted(self.away)))
            if len(known) < MOST_CLIENTS and chance.random() < 0.1:
                self.memories[len(known)] = Memory()
        return [FIRST_NODE + client for client in self.memories if client not in self.away]

    def result(self, client: int, order: Order) -> Answer | Refused | Undelivered | None:
        """What comes back for a task in this turn; None: nothing yet."""
        if client in self.away:
            if self.chance.random() < 0.5:
                self._work(client, order)
            return Undelivered("error 5: gone")
        if not self.steady and self.chance.random() < 0.4:
            return None
        fails = not self.steady and self.failures[client] < 2 and self.chance.random() < 0.25
        self.failures[client] = self.failures[client] + 1 if fails else 0
        if not fails:
            return self._work(client, order)
        return self.chance.choice((self._raises, self._expires, self._is_refused, self._is_not_finite))(client, order)

    def _work(self, client: int, order: Order) -> Answer:
        gradient = torch.tensor([self.chance.gauss(0, 1) for _ in range(DIM)])
        self.gradients[order.run, order.task] = gradient
        self.uploads[client] += 1
        base, update = self.memories[client].change(order, gradient)
        return Answer(update, base, 1, {}, 4 * DIM)

    def _raises(self, client: int, order: Order) -> Undelivered:
        self.silent[client] += 1
        return Undelivered("error 2: the ClientApp raised", silent=True)

    def _expires(self, client: int, order: Order) -> Undelivered:
        if self.chance.random() < 0.7:
            self._work(client, order)
        return Undelivered("error 3: expired")

    def _is_refused(self, client: int, order: Order) -> Refused:
        self._work(client, order)
        return Refused("wrong-shape")

    def _is_not_finite(self, client: int, order: Order) -> Answer:
        good = self._work(client, order)
        return Answer(torch.full((DIM,), math.nan), good.base, 1, {}, good.nbytes)


class ByHand(Post[Any, Any]):
    """Hands tasks to the nodes and their answers to the fleet, without messages."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._out: list[Any] = []
        self.foreign = 0

    def __len__(self) -> int:
        return len(self._out)

    def send(self, tag: Any, make: Callable[[], Message], pace: Hashable = None) -> None:
        self._nodes.asked[tag.node.id - FIRST_NODE] += 1
        self._out.append(tag)

    def out(self) -> list[Any]:
        return list(self._out)

    def hurry(self, which: Callable[[Any], bool]) -> None: ...

    def collect(self, timeout: float) -> list[tuple[Any, Any]]:
        found = [(task, self._nodes.result(task.node.id - FIRST_NODE, task.order)) for task in self._out]
        self._nodes.chance.shuffle(found)
        self._out = [task for task, result in found if result is None]
        return [(task, result) for task, result in found if result is not None]

    def close(self) -> None:
        """The server is gone: some nodes go on with what they are at, and send it to nobody."""
        for task in self._out:
            if self._nodes.chance.random() < 0.7:
                self._nodes._work(task.node.id - FIRST_NODE, task.order)


class Ledger(Observer):
    """Every client's last accepted gradient, as its client computed it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.run = ""
        self.last: dict[int, Vector] = {}

    def arrived(self, arrival: Arrival, reason: str) -> None:
        if not reason:
            self.last[arrival.client] = self._nodes.gradients[self.run, arrival.task]


class History:
    """A run that is killed now and then, and resumed."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.nodes = Nodes(chance, chance.randint(2, MOST_CLIENTS - 1))
        self.rule = ACE(variant="client-held", warmup=chance.choice(("wait", "seen")))
        self.ledger = Ledger(self.nodes)
        self.sent: Counter[str] = Counter()
        self.kills = 0
        self.federation = self._start()

    def _start(self) -> Training:
        post, wires = ByHand(self.nodes), Wires(patience=math.inf)
        self.fleet = FlowerFleet(self.nodes, LAYOUT, wires, differences=True, clock=ticking(), post=post)
        self.fleet.wait_for(1)
        self.fleet.on_send = lambda names, **_: self.sent.update(names)
        self.ledger.run = self.fleet._run
        stop = Stop(arrivals=10**9)
        return Training(self.rule, self.fleet, model=START, lr=0.01, stop=stop, config={}, observers=[self.ledger])

    def play(self, turns: int) -> Iterator[None]:
        advance, checkpoint = self.federation.advance(), self.federation.state_dict()
        for _ in range(turns):
            next(advance)
            yield
            if not self.nodes.steady and self.chance.random() < 0.3:
                checkpoint = self.federation.state_dict()
            if not self.nodes.steady and self.chance.random() < 0.07:
                self._resume(checkpoint)
                advance = self.federation.advance()

    def _resume(self, checkpoint: State) -> None:
        self.kills += 1
        self.federation.close()
        self.federation = self._start()
        self.federation.load_state_dict(checkpoint)
        self.fleet.already_sent(self.sent)

    @property
    def counted(self) -> set[int]:
        rule: Any = self.federation.server.rule
        return set(rule._seen)

    def check_sum(self) -> None:
        rule: Any = self.federation.server.rule
        off = rule._total - sum((self.ledger.last[client].double() for client in self.counted), NOTHING)
        assert off.abs().max() <= 1e-6, "the sum is not that of the last gradients"

    def uploads(self) -> dict[int, int]:
        """As the record will have them, by the node."""
        rows = self.federation.clients()
        return {node - FIRST_NODE: int(row["uploads"]) for node, row in zip(self.fleet.node_ids, rows, strict=True)}

    def check_uploads(self) -> None:
        uploads = self.uploads()
        for client, made in self.nodes.uploads.items():
            assert made <= uploads[client] <= self.nodes.asked[client], "an upload is not accounted for"


@pytest.mark.parametrize("part", range(PARTS))
def test_the_sum_is_that_of_the_last_gradients_and_every_upload_counts(part: int) -> None:
    logging.disable(logging.WARNING)
    try:
        for seed in range(part, HISTORIES, PARTS):
            _play(seed)
    finally:
        logging.disable(logging.NOTSET)


def _play(seed: int) -> None:
    history = History(seed)
    for _ in history.play(TURNS):
        history.check_sum()
        history.check_uploads()
    history.nodes.steady = True
    for _ in history.play(STEADY):
        history.check_sum()
    nodes, uploads = history.nodes, history.uploads()
    assert len(history.counted) == len(nodes.memories), "somebody who answers is not in the sum"
    assert "ended" not in history.federation.config
    if not history.kills:
        assert uploads == {client: nodes.asked[client] - nodes.silent[client] for client in nodes.memories}
    history.federation.close()
    history.check_uploads()
