"""A Flower grid without Flower's processes: nodes answer when a script says so, well or badly.

A turn of the script is over when all its answers have been pulled; the next begins when the fleet next looks who is
connected, which it does before each dispatch under a clock that ticks by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from acefl.flower import send_update

FIRST_NODE = 1000
Client = Callable[[Message, Context], Message]
Spoil = Callable[[Message, Message], Message | None]  # (question, good answer) -> what comes instead; None: nothing


class AtOnce(Executor):
    """A pool that does everything in the caller's thread, in order."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def ticking() -> Callable[[], float]:
    """A clock on which two minutes pass between any two looks: everything is always due."""
    ticks = itertools.count(0.0, 120.0)
    return lambda: next(ticks)


class FakeGrid(Grid):
    """`script`: who answers in each turn, as (client, how); `how` None is a good answer."""

    def __init__(self, client: Client, nodes: int, script: Iterable[Sequence[tuple[int, Spoil | None]]]) -> None:
        # what a ServerApp's process does when it starts
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        self._client = client
        self.contexts = {c: self.fresh_context(c) for c in range(nodes)}
        self.away: set[int] = set()
        self._script: Iterator[Sequence[tuple[int, Spoil | None]]] = iter(script)
        self._turn: dict[int, Spoil | None] = {}
        self._ids = itertools.count(1)
        self.waiting: dict[str, Message] = {}
        self.answered: list[Message] = []
        self.over = False
        self.copies = 1  # of each answer

    @staticmethod
    def fresh_context(client: int) -> Context:
        return Context(
            run_id=7,
            node_id=FIRST_NODE + client,
            node_config={"partition-id": client},
            state=RecordDict(),
            run_config={},
        )

    def get_node_ids(self) -> Iterable[int]:
        if not self._turn:
            turn = next(self._script, None)
            self.over = turn is None
            self._turn = dict(turn or ())
        return [FIRST_NODE + c for c in self.contexts if c not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"message-{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.waiting[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for message_id in message_ids:
            question = self.waiting[message_id]
            client = question.metadata.dst_node_id - FIRST_NODE
            if client in self.away:
                found.append(Message(Error(5, "node unavailable"), reply_to=question))
            elif client in self._turn:
                spoil = self._turn.pop(client)
                answer = self._answer(question, client, spoil)
                if answer is not None:
                    found.append(answer)
        for answer in found:
            self.waiting.pop(answer.metadata.reply_to_message_id, None)
            self.answered.append(answer)
        return found * self.copies

    def _answer(self, question: Message, client: int, spoil: Spoil | None) -> Message | None:
        if spoil is not None and getattr(spoil, "instead", False):
            return spoil(question, question)
        try:
            good = send_update(question, self.contexts[client], self._client)
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=question)
        return good if spoil is None else spoil(question, good)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("deprecated in Flower")

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError("waits for everybody: not for asynchronous training")
