"""How often answers are looked for: a node that takes long is left alone for most of that, and others never wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from flwr.app import Message
from tests.fleets.flower.fake_grid import AtOnce

from acefl.fleets.flower.post import MOST_LOOKS, Post


class Counting:
    """A grid that counts who looks for what; `ready` messages are answered."""

    def __init__(self) -> None:
        self.pulls: list[str] = []
        self.ready: set[str] = set()
        self.pushed = 0

    def push_messages(self, messages: Iterable[object]) -> list[str]:
        self.pushed += len(list(messages))
        return [f"message-{self.pushed}"]

    def pull_messages(self, message_ids: Iterable[str]) -> list[object]:
        [message_id] = message_ids
        self.pulls.append(message_id)
        return [Reply(message_id)] if message_id in self.ready else []


class Reply:
    def __init__(self, message_id: str) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": message_id})


def run(takes: Callable[[int], float], messages: int, least: float = 0.05) -> tuple[list[float], list[int]]:
    """One sender answers message after message: how long each answer lay there, and how many looks it took."""
    now, grid = 0.0, Counting()
    post: Post[int, list[int]] = Post(
        grid,  # type: ignore[arg-type]
        lambda tag, reply: [tag],
        pool=AtOnce(),
        clock=lambda: now,
        least=least,
    )
    lay, looks = [], []
    for number in range(messages):
        post.send(number, lambda: Message, pace="sender")  # type: ignore[arg-type, return-value]
        sent, before = now, len(grid.pulls)
        while True:
            now += 0.01
            if now - sent >= takes(number):
                grid.ready.add(f"message-{number + 1}")
            if post.collect(0.0):
                break
        lay.append(now - sent - takes(number))
        looks.append(len(grid.pulls) - before)
    return lay, looks


@pytest.mark.parametrize("seconds", [0.3, 3.0, 40.0])
def test_a_steady_sender_is_looked_for_a_few_times_and_its_answers_do_not_lie(seconds: float) -> None:
    lay, looks = run(lambda number: seconds, 30)
    assert sum(looks[5:]) / 25 <= 6, "nobody looks before an answer can be there"
    assert max(lay[1:]) <= 0.1 * seconds + 0.06


def test_the_time_an_answer_lay_does_not_make_the_next_one_lie() -> None:
    """With many nodes looks are rare; by when an answer was found they would become rarer and rarer."""
    lay, _ = run(lambda number: 2.0, 40, least=5.0)
    assert max(lay) <= 5.1
    lay, _ = run(lambda number: 100.0 if number < 3 else 1.0, 20)
    assert max(lay[3:]) <= 60.0, "a sender that has become faster waits once for as long as it was left alone"
    assert lay[-1] <= 0.15


def test_others_are_looked_for_while_one_is_left_alone() -> None:
    now, grid = 0.0, Counting()
    post: Post[str, list[str]] = Post(
        grid,  # type: ignore[arg-type]
        lambda tag, reply: [tag],
        pool=AtOnce(),
        clock=lambda: now,
    )
    for tag in ("slow", "fast"):
        post.send(tag, lambda: Message, pace=tag)  # type: ignore[arg-type, return-value]
    found = []
    while len(found) < 2:
        now += 0.05
        grid.ready |= {"message-2"} if now > 1.0 else set()
        grid.ready |= {"message-1"} if now > 10.0 else set()
        found += [(tag, now) for tag, _ in post.collect(0.0)]
    assert found[0][0] == "fast"
    assert found[0][1] <= 1.2
    post.send("slow", lambda: Message, pace="slow")  # type: ignore[arg-type, return-value]
    sent, before = now, len(grid.pulls)
    post.send("fast", lambda: Message, pace="fast")  # type: ignore[arg-type, return-value]
    while now - sent < 8.0:
        now += 0.05
        post.collect(0.0)
    assert "message-3" not in grid.pulls[before:], "it took ten seconds the last time"
    assert "message-4" in grid.pulls[before:]


class Stuck(AtOnce):
    """A pool in which looks for some messages never end: their nodes pause in mid-upload."""

    def __init__(self, stuck: set[str]) -> None:
        self._stuck = stuck

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(args) == 2 and getattr(args[1], "message_id", "") in self._stuck:
            return Future()
        return super().submit(fn, *args, **kwargs)


def test_nodes_that_pause_in_mid_upload_keep_nobody_from_being_looked_for() -> None:
    """Also if they are more than are looked for at a time: they are left to themselves after a second."""
    now, grid, slow = 0.0, Counting(), 3 * MOST_LOOKS
    post: Post[int, list[int]] = Post(
        grid,  # type: ignore[arg-type]
        lambda tag, reply: [tag],
        pool=Stuck({f"message-{number + 1}" for number in range(slow)}),
        clock=lambda: now,
    )
    for number in range(slow + 5):
        post.send(number, lambda: Message, pace=number)  # type: ignore[arg-type, return-value]
    grid.ready = {f"message-{number + 1}" for number in range(slow + 5)}
    found: list[int] = []
    while now < 10.0:
        now += 0.05
        found += [tag for tag, _ in post.collect(0.0)]
    assert sorted(found) == list(range(slow, slow + 5))
