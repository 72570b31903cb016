"""Flower's nodes as a fleet: the same protocol as the simulator's, so the same loop, server and rules drive it."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Lock

from flwr.app import DEFAULT_TTL, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from acefl.core import rng as keyed
from acefl.core.errors import NothingInFlight, one_of, require
from acefl.core.types import Arrival, Event, Joined, Left, Lost, Restarted, State, Vector
from acefl.fleets import wire
from acefl.fleets.base import Fleet, Member, Refusal, Trip
from acefl.fleets.flower.post import LEAST, Post, Undelivered
from acefl.fleets.flower.records import (
    MODEL,
    NO_BASE,
    ORDER,
    Answer,
    Findings,
    Form,
    ModelLayout,
    Order,
    Refused,
    nbytes,
    read_answer,
    read_findings,
)
from acefl.fleets.flower.roster import FAILURES, Node, Roster
from acefl.fleets.flower.survey import Survey

log = logging.getLogger("acefl")

SCAN = 1.0  # seconds between looks at who is connected ...
LISTED = 40  # ... or one for so many nodes, if that is longer: a look lists all of them
SILENT = (1, 2)  # Flower's codes for a ClientApp that could not be loaded, or raised: it has sent nothing
SPARE = 1 << 20  # bytes an answer may be larger than its update: metrics, and what the user adds


@dataclass(frozen=True)
class Wires:
    """How models and updates travel, and how long an answer may take.

    Args:
        uplink: Encoding of updates: `fp32`, `bf16` or `int8`.
        downlink: Encoding of models; `fp32` sends your own arrays.
        ttl: Seconds after which an unanswered task counts as lost.
        patience: Seconds without any node after which the run ends.
    """

    uplink: str = "fp32"  # updates: fp32, bf16 or int8
    downlink: str = "fp32"  # models: fp32 goes out as the user's own arrays
    ttl: float = DEFAULT_TTL  # seconds after which an unanswered task counts as lost
    patience: float = 600.0  # seconds without any node after which the run ends

    def __post_init__(self) -> None:
        one_of("uplink", self.uplink, wire.ENCODINGS)
        one_of("downlink", self.downlink, wire.ENCODINGS)
        require(self.ttl > 0, f"ttl is {self.ttl}; allowed: above 0 seconds")
        require(self.patience > 0, f"patience is {self.patience}; allowed: above 0 seconds")


Made = Callable[[Form], ArrayRecord | bytes]  # a model in a form


@dataclass
class _Task:
    node: Node
    order: Order
    sent: float
    kind: str
    downlink: int = 0


Result = Answer | Findings | Refused | Undelivered


class FlowerFleet(Fleet):
    """Keeps every connected node busy. `now` moves only in `next`, so that all arrivals of a turn have one time.

    Args:
        grid: Flower's grid.
        layout: Where each array lies in the flat model.
        wires: Encodings and time limits; None: `Wires()`.
        differences: Whether clients send changes, as for client-held ACE.
        config: Sent along with every task.
        trained: Whether gradients are refused: the learning rate fits trained arrays alone.
        pool: Executor whose threads send, fetch and read messages; None: one of its own.
        clock: Seconds that never go back.
        least: Shortest pause between two looks for answers, in seconds.
        post: What sends and fetches messages; None: one for `grid`.
    """

    virtual = False
    travels = True
    loses = True

    def __init__(
        self,
        grid: Grid,
        layout: ModelLayout,
        wires: Wires | None = None,
        *,
        differences: bool = False,
        config: ConfigRecord | None = None,
        trained: bool = False,
        pool: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        least: float = LEAST,
        post: Post[_Task, Answer | Findings | Refused] | None = None,
    ) -> None:
        self._grid, self._layout, self.wires = grid, layout, wires or Wires()
        self._differences, self._config, self._trained = differences, config, trained
        self._clock = clock
        self._run = secrets.token_hex(8)
        if post is None:
            post = Post(grid, self._read, pool=pool, clock=clock, least=least)
        self._post: Post[_Task, Answer | Findings | Refused] = post
        self._most = wire.nbytes(self.wires.uplink, layout.dim) + SPARE
        self._roster = Roster(clock)
        self._new: set[int] = set()  # clients of which the server has nothing yet
        self._base: dict[int, int] = {}  # client -> its task that is in client-held ACE's sum: what it differences from
        self._sent: Counter[int] = Counter()  # node id -> tasks
        self._silent: Counter[int] = Counter()  # node id -> those of them that certainly led to no upload
        self._answered: dict[int, tuple[_Task, Answer]] = {}  # arrivals that the server has not judged yet
        self._refused: list[Refusal] = []
        self._surveys: dict[int, Survey] = {}
        self._news: list[Event] = []  # of who joined and who is not waited for, not reported yet
        self._tasks = self._version = 0
        self._newcomers_only = False
        self._began = self._last_seen = clock()
        self._scanned = -SCAN
        self.now = 0.0
        self.samples: dict[int, int] = {}
        self.stopped = False  # whether the SuperLink says that the run is over
        self.metrics: dict[str, list[float]] = {}  # of accepted answers, since somebody last took them

    @property
    def clients(self) -> int:
        return len(self._roster.nodes)

    @property
    def node_ids(self) -> list[int]:
        """Every client's node."""
        return [node.id for node in self._roster.nodes]

    def members(self) -> list[Member]:
        return [Member(str(node.id), node.connected) for node in self._roster.nodes]

    @property
    def connected(self) -> list[int]:
        """The clients whose nodes are connected."""
        return [node.client for node in self._roster.connected]

    @property
    def uploads(self) -> list[int]:
        """Every task that was sent counts, but for those of which it is certain that no update left the client."""
        return [self._sent[node.id] - self._silent[node.id] for node in self._roster.nodes]

    def already_sent(self, tasks: Mapping[str, int]) -> None:
        """A node that first came after the checkpoint is a client too, there or not."""
        for name, count in tasks.items():
            self._sent[int(name)] = max(self._sent[int(name)], count)
        self._take_in(self._roster.remember(map(int, tasks)))

    @property
    def foreign(self) -> int:
        """Answers to messages of which we know nothing."""
        return self._post.foreign

    def wait_for(self, count: int) -> None:
        """Wait until so many nodes are connected; time counts from then on."""
        until = self._clock() + self.wires.patience
        self._scan()
        while len(self.connected) < count:
            if self._clock() >= until:
                raise NothingInFlight(f"{len(self.connected)} of {count} nodes after {self.wires.patience:g} s")
            self._post.collect(SCAN)
            self._scan()
        self._began = self._clock()

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int]:
        self._version, self._newcomers_only = version, newcomers_only
        if self._clock() >= self._next_scan:
            self._scan()
        ready = [
            node
            for node in self._roster.nodes
            if self._roster.is_ready(node) and (node.client in self._new or not newcomers_only)
        ]
        if ready:
            self._sent.update(node.id for node in ready)
            if self.on_send is not None:
                self.on_send([str(node.id) for node in ready])
            made = self._forms(model, version)
            for node in ready:
                node.busy = True
                self._send(node, made, version, MessageType.TRAIN)
        return [node.client for node in ready]

    def _forms(self, model: Vector, version: int) -> Made:
        """What makes the model of a message in a form: once per model, in the thread that first needs it."""
        snapshot, made, lock = model.clone(), dict[Form, ArrayRecord | bytes](), Lock()

        def make(form: Form) -> ArrayRecord | bytes:
            with lock:
                if form not in made:
                    draw = keyed.key(*self._run.encode(), -1 - version)
                    made[form] = self._layout.made(form, snapshot, self.wires.downlink, draw)
            return made[form]

        return make

    def _send(self, node: Node, made: Made, version: int, kind: str) -> None:
        base = self._base.get(node.client, NO_BASE)
        encodings = self.wires.uplink, self.wires.downlink
        order = Order(self._run, self._tasks, version, *encodings, self._differences, base, self._trained)
        task = _Task(node, order, self._clock() - self._began, kind)
        self._tasks += 1
        form = self._layout.form(self.wires.downlink, unpacks=node.unpacks)

        def message() -> Message:
            layout, model = "" if form is Form.PLAIN else self._layout.describe(), made(form)
            content = RecordDict({MODEL: model} if isinstance(model, ArrayRecord) else {})
            content[ORDER] = order.record(layout, model if isinstance(model, bytes) else None)
            if self._config is not None:
                content["config"] = self._config
            task.downlink = nbytes(content)
            return Message(content, node.id, kind, ttl=self.wires.ttl)

        self._post.send(task, message, pace=(node.id, kind))

    def next(self) -> list[Event]:
        self._end_if_nothing_can_come()
        results = self._post.collect(0.0 if self._news else max(0.0, self._next_scan - self._clock()))
        self.now = self._clock() - self._began
        if self._differences:
            self._look_for_lost_memories(results)
        events = [self._event(task, result) for task, result in results]
        news, self._news = self._news, []
        return [*news, *(event for event in events if event is not None)]

    def versions_out(self) -> set[int]:
        return {task.order.version for task in self._post.out()}

    def _end_if_nothing_can_come(self) -> None:
        there, now = self._roster.connected, self._clock()
        if there:
            self._last_seen = now
        elif now - self._last_seen > self.wires.patience:
            raise NothingInFlight(f"no node has been connected for {self.wires.patience:g} s")
        asked = self._new if self._newcomers_only else set(range(self.clients))
        if there and not len(self._post) and not any(node.client in asked for node in there):
            raise NothingInFlight("nobody who is connected still has to report for the first time")

    def _event(self, task: _Task, result: Result) -> Arrival | Lost | None:
        node, order = task.node, task.order
        if task.kind == MessageType.EVALUATE:
            self._surveyed(task, result)
            return None
        node.busy = False
        if isinstance(result, Answer) and self._differences and result.base != self._base.get(node.client, NO_BASE):
            outdated = Refused("outdated-difference", result.nbytes)
            self._refused.append(self._refusal(task, outdated))
            return None  # not lost: the client is asked again at once, and whoever waits for it goes on waiting
        if isinstance(result, Answer):
            node.unpacks = result.trained
            self._answered[order.task] = task, result
            return Arrival(node.client, result.update, order.version, self._version, order.task)
        assert not isinstance(result, Findings)
        if isinstance(result, Refused):
            self._refused.append(self._refusal(task, result))
        self._note_silence(task, result)
        self._failed(node, str(result))
        return Lost(node.client, order.task)

    def _refusal(self, task: _Task, refused: Refused) -> Refusal:
        trip = Trip(task.sent, refused.nbytes, task.downlink)
        return Refusal(task.node.client, task.order.version, str(refused), trip)

    def _note_silence(self, task: _Task, result: Result) -> None:
        if isinstance(result, Undelivered) and result.silent:
            self._silent[task.node.id] += 1

    def _look_for_lost_memories(self, results: Sequence[tuple[_Task, Result]]) -> None:
        """Start anew before anything of the turn is taken in: no other change of the turn fits into the new sum.

        A client whose gradient is in the sum and who answers with a whole one has lost its memory.
        """
        forgetful = [
            task.node.client
            for task, result in results
            if isinstance(result, Answer) and result.base == NO_BASE and task.node.client in self._base
        ]
        if forgetful:
            self._start_anew(f"client {', '.join(map(str, forgetful))} has lost its last gradient")

    def _start_anew(self, why: str) -> None:
        """The server's sum holds a gradient that nobody can take out again, since the client has lost it.

        Without a table there is one way to a sum that is right: everybody sends the whole gradient once more.
        Changes of the old sum that are under way are refused when they come.
        """
        log.warning("%s: all clients send theirs anew", why)
        self._base.clear()
        self._new = {node.client for node in self._roster.nodes}
        self._news.append(Restarted())
        self._news += [Left(node.client) for node in self._roster.nodes if not node.connected]

    def _failed(self, node: Node, reason: str) -> None:
        self._roster.failed(node, reason)
        if node.failures >= FAILURES and self._newcomers_only:
            self._news.append(Left(node.client))

    def acknowledge(self, arrival: Arrival, reason: str) -> Trip:
        task, result = self._answered.pop(arrival.task)
        if reason:
            self._failed(task.node, reason)
        else:
            task.node.failures = 0
            self._new.discard(arrival.client)
            self._base[arrival.client] = arrival.task
            self.samples[arrival.client] = result.samples
            for name, value in result.metrics.items():
                self.metrics.setdefault(name, []).append(value)
        return Trip(task.sent, result.nbytes, task.downlink)

    def refusals(self) -> list[Refusal]:
        refused, self._refused = self._refused, []
        return refused

    def _read(self, task: _Task, reply: Message) -> Answer | Findings | Refused | Undelivered:
        if reply.has_error():
            reason = f"error {reply.error.code}: {reply.error.reason}"
            return Undelivered(reason, silent=reply.error.code in SILENT)
        if task.kind == MessageType.EVALUATE:
            return read_findings(reply.content)
        try:
            return read_answer(reply.content, task.order, self._layout.dim, self._most)
        except Refused as refused:
            return refused

    @property
    def _next_scan(self) -> float:
        return self._scanned + max(SCAN, self.clients / LISTED)

    def _scan(self) -> None:
        """Take in who has joined; what those who left were working on is asked for at once, and found lost."""
        self._scanned = self._clock()
        try:
            there = list(self._grid.get_node_ids())
        except RunNotRunningException:  # no Exception in Flower: it is meant to end the process
            self.stopped = True
            return
        joined, left = self._roster.update(there)
        self._take_in(joined)
        if left:
            self._post.hurry(lambda task: task.node in left)

    def _take_in(self, joined: list[Node]) -> None:
        self._new.update(node.client for node in joined)
        if joined:
            self._news.append(Joined(self.clients))

    def survey(self, model: Vector, version: int) -> None:
        """Ask every connected node to evaluate this model; training goes on beside it."""
        there = self._roster.connected
        self._surveys[version] = Survey(version, {node.client for node in there})
        made = self._forms(model, version)
        for node in there:
            self._send(node, made, version, MessageType.EVALUATE)

    def _surveyed(self, task: _Task, result: Result) -> None:
        survey = self._surveys.get(task.order.version)
        if survey is not None:
            survey.waiting.discard(task.node.client)
            if isinstance(result, Findings):
                survey.found[task.node.client] = result
            else:
                log.warning("client %d did not evaluate: %s", task.node.client, result)

    def surveys(self) -> list[Survey]:
        """Those that everybody asked has answered, or never will."""
        over = [survey for survey in self._surveys.values() if not survey.waiting]
        for survey in over:
            del self._surveys[survey.version]
        return over

    def drain(self, seconds: float) -> None:
        """Let nodes finish what they are at, so that no ClientApp is cut off; updates are not used any more."""
        until = self._clock() + seconds
        while len(self._post) and self._clock() < until:
            for task, result in self._post.collect(min(SCAN, max(0.0, until - self._clock()))):
                if task.kind == MessageType.EVALUATE:
                    self._surveyed(task, result)
                else:
                    self._note_silence(task, result)

    def close(self) -> None:
        self._post.close()

    def state_dict(self) -> State:
        """Whoever is at work is asked anew, like one of whom there is nothing yet: a round may be waiting for it."""
        return {
            "now": self.now,
            "nodes": [str(node_id) for node_id in self.node_ids],
            "tasks": self._tasks,
            "new": sorted(self._new.union(node.client for node in self._roster.nodes if node.busy)),
            "samples": [[client, count] for client, count in self.samples.items()],
            "sent": [[str(node_id), count, self._silent[node_id]] for node_id, count in self._sent.items()],
        }

    def load_state_dict(self, state: State) -> None:
        """Known nodes keep their numbers, newly seen ones come after them. What was under way is lost.

        The clients' memories of differences belong to the process that died, so client-held ACE starts its sum anew.
        """
        self._roster.load(int(node_id) for node_id in state["nodes"])
        self._news = [Joined(self.clients)]  # some may have joined when the server had not heard of it yet
        self.now = float(state["now"])
        self._began = self._clock() - self.now
        self._tasks, self._new = int(state["tasks"]), set(state["new"])
        self.samples = {client: count for client, count in state["samples"]}
        self._sent = Counter({int(node_id): count for node_id, count, _ in state["sent"]})
        self._silent = Counter({int(node_id): silent for node_id, _, silent in state["sent"]})
        self._scan()
        if self._differences:
            self._start_anew("the server was restarted")
