"""Messages out, answers in: every message is pushed and pulled on its own, in a thread of a pool.

`Grid.pull_messages` blocks until everything it found has been uploaded, so one node that pauses in mid-upload would
hold up the answers of all others if they were pulled together.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

log = logging.getLogger("acefl")

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 512  # as many nodes may be stuck in mid-upload before others wait for a thread
MOST_PUSHES = 4  # at a time: they wait for no node, and every request under way makes all others dearer
MOST_LOOKS = 6  # at a time, for the same reason ...
STUCK = 1.0  # ... but for those that take longer than so many seconds: they may wait for a node's upload
LOOKS_PER_SECOND = 40  # at all messages together, so that many nodes do not swamp the SuperLink with questions
PATIENT_BY = 1 / 20  # a message is looked after again when this share of its age has passed ...
LEAST, MOST = 0.05, 1.0  # ... but not sooner, and not later, than so many seconds
QUIET = 0.9  # no look before this share of the time after which the sender's last answer was still missing ...
LONGEST_QUIET = 60.0  # ... or so many seconds: it may have become faster


@dataclass(frozen=True)
class Undelivered:
    """A message that was not sent, or that will never be answered.

    `silent` where it is certain that nothing left the client: it never got the message, or says that it failed.
    """

    reason: str
    silent: bool = False

    def __str__(self) -> str:
        return self.reason


@dataclass
class _Letter(Generic[T]):
    tag: T
    sent: float
    pace: Hashable
    quiet: float  # seconds after it was sent in which nobody looks for an answer
    message_id: str = ""
    due: float = 0.0
    looked: float = 0.0  # age at the last look ...
    missing: float = 0.0  # ... and at the last one that found nothing
    pulling: bool = False

    @property
    def waits(self) -> bool:
        """Whether it was sent, and nobody is looking for its answer."""
        return bool(self.message_id) and not self.pulling


class Post(Generic[T, R]):
    """Sends messages and hands out their answers as they come, whatever the order.

    `read` turns an answer into what the caller wants; it runs in the pool's threads, as pushing and pulling do.
    Only `send`, `collect`, `hurry` and `close` are called by the owner, from one thread.
    """

    def __init__(
        self,
        grid: Grid,
        read: Callable[[T, Message], R | Undelivered],
        *,
        pool: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        least: float = LEAST,
    ) -> None:
        self._grid = grid
        self._read = read
        self._pool = pool or ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="acefl-post")
        self._pushes = pool or ThreadPoolExecutor(MOST_PUSHES, thread_name_prefix="acefl-push")
        self._clock = clock
        self._least = least
        self._letters: dict[int, _Letter[T]] = {}
        self._quiet: dict[Hashable, float] = {}  # by pace: how long there was certainly no answer to the last message
        self._back: queue.SimpleQueue[tuple[int, str | int | R | Undelivered]] = queue.SimpleQueue()
        self._count = 0
        self._outage = False
        self.foreign = 0  # answers to messages that were not asked for

    def __len__(self) -> int:
        """How many messages are out."""
        return len(self._letters)

    def send(self, tag: T, make: Callable[[], Message], pace: Hashable = None) -> None:
        """Push the message that `make` gives; both happen in the pool.

        Messages of one `pace` take about as long as each other to be answered, so nobody looks for answers before.
        """
        number, self._count = self._count, self._count + 1
        self._letters[number] = _Letter(tag, self._clock(), pace, self._quiet.get(pace, 0.0))
        self._pushes.submit(self._push, number, make).add_done_callback(_tell)

    def out(self) -> list[T]:
        """What the messages that are out were tagged with."""
        return [letter.tag for letter in self._letters.values()]

    def hurry(self, which: Callable[[T], bool]) -> None:
        """Look after these messages at once: their node is said to be gone."""
        for letter in self._letters.values():
            if which(letter.tag):
                letter.due = 0.0

    def collect(self, timeout: float) -> list[tuple[T, R | Undelivered]]:
        """All answers that are there; waits up to `timeout` seconds for the first."""
        until = self._clock() + timeout
        found = self._sort(0.0)
        while True:
            self._look()
            found += self._sort(0.0 if found else max(0.0, min(until, self._next_look()) - self._clock()))
            if found or self._clock() >= until:
                return found

    def _sort(self, wait: float) -> list[tuple[T, R | Undelivered]]:
        """Note what the threads have reported; says which messages are done with."""
        found: list[tuple[T, R | Undelivered]] = []
        for number, what in self._reports(wait):
            letter = self._letters[number]
            if isinstance(what, str):
                letter.message_id = what
                letter.due = max(self._clock() + self._least, letter.sent + letter.quiet)
            elif isinstance(what, int):
                self.foreign += what
                letter.pulling, letter.missing = False, letter.looked
                letter.due = self._clock() + self._pause(letter)
            else:
                del self._letters[number]
                found.append((letter.tag, what))
                if letter.pace is not None and not isinstance(what, Undelivered):
                    self._quiet[letter.pace] = _next_quiet(letter)
        return found

    def _reports(self, wait: float) -> Iterator[tuple[int, str | int | R | Undelivered]]:
        """All there is, waiting for the first if there is nothing yet."""
        try:
            yield self._back.get(timeout=wait) if wait else self._back.get_nowait()
            while True:
                yield self._back.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """Stop looking; what is being pulled is not waited for."""
        self._letters.clear()
        for pool in (self._pool, self._pushes):
            pool.shutdown(wait=False, cancel_futures=True)

    def _pause(self, letter: _Letter[T]) -> float:
        age = self._clock() - letter.sent
        return max(self._least, min(age * PATIENT_BY, MOST), len(self._letters) / LOOKS_PER_SECOND)

    def _next_look(self) -> float:
        """When to look again; if all places are taken, soon: one may have become free."""
        due = min((letter.due for letter in self._letters.values() if letter.waits), default=math.inf)
        return due if due > self._clock() else self._clock() + STUCK / 4

    def _look(self) -> None:
        """Look for what is due, the longest due first."""
        now = self._clock()
        free = MOST_LOOKS - sum(
            letter.pulling and now - letter.sent - letter.looked < STUCK for letter in self._letters.values()
        )
        due = [(letter.due, number) for number, letter in self._letters.items() if letter.waits and letter.due <= now]
        for _, number in sorted(due)[: max(0, free)]:
            letter = self._letters[number]
            letter.pulling, letter.looked = True, now - letter.sent
            self._pool.submit(self._pull, number, letter).add_done_callback(_tell)

    def _push(self, number: int, make: Callable[[], Message]) -> None:
        try:
            ids = list(self._grid.push_messages([make()]))
        except (Exception, RunNotRunningException) as error:  # the engine raises what its transport raises
            self._back.put((number, Undelivered(f"{type(error).__name__}: {error}")))
            return
        refused = Undelivered("the SuperLink did not take the message", silent=True)
        self._back.put((number, ids[0] if ids and ids[0] else refused))

    def _pull(self, number: int, letter: _Letter[T]) -> None:
        try:
            answers = list(self._grid.pull_messages([letter.message_id]))
            self._outage = False
        except (Exception, RunNotRunningException) as error:  # an outage: look again later; the time to live ends it
            if not self._outage:
                log.warning("cannot ask for answers now: %s: %s", type(error).__name__, error)
            self._outage, answers = True, []
        own = [answer for answer in answers if answer.metadata.reply_to_message_id == letter.message_id]
        try:
            self._back.put((number, self._read(letter.tag, own[0]) if own else len(answers)))
        except Exception as error:
            self._back.put((number, Undelivered(f"{type(error).__name__}: {error}")))
            raise


def _next_quiet(letter: _Letter[T]) -> float:
    """How long to leave the sender's next message alone: by when this answer was still missing, not by when it was
    found, since that is later the seldomer one looks. Found at the first look, it may have been there for long."""
    return min(QUIET * letter.missing, LONGEST_QUIET) if letter.missing else letter.quiet / 2


def _tell(future: Future[None]) -> None:
    """A bug in our own code must not vanish in a thread."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("while handling a message", exc_info=error)
