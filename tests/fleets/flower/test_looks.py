"""How often answers are looked for: a node that takes long is left alone for half of that, and others never wait."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from tests.fleets.flower.fake_grid import AtOnce

from acefl.fleets.flower.post import Post


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


def test_a_message_is_left_alone_while_it_is_quiet_and_others_are_not() -> None:
    now = 0.0
    grid = Counting()
    post: Post[str, list[str]] = Post(
        grid,  # type: ignore[arg-type]
        lambda tag, reply: [tag],
        pool=AtOnce(),
        clock=lambda: now,
        least=0.05,
    )
    post.send("slow", lambda: Message, quiet=4.0)  # type: ignore[arg-type, return-value]
    post.send("fast", lambda: Message)  # type: ignore[arg-type, return-value]
    found = []
    for _ in range(100):
        now += 0.06
        if now > 3.0:
            grid.ready.add("message-1")
        if now > 1.0:
            grid.ready.add("message-2")
        found += [(what, round(now, 1)) for _, what in post.collect(0.0)]
        if now < 4.0:
            assert "message-1" not in grid.pulls
    assert [what for what, _ in found] == [["fast"], ["slow"]]
    assert found[0][1] <= 1.2
    assert 4.0 <= found[1][1] <= 4.2
    assert grid.pulls.count("message-1") == 1
