"""A fleet that delivers what it is told: for tests, and to replay what a real federation recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from acefl.core.errors import InvalidInput, NothingInFlight
from acefl.core.types import Arrival, Event, Left, Lost, Vector

# Who arrives and on which model version it trained, what was lost, who left.
Turn = Sequence[tuple[int, int] | Lost | Left]


class ScriptedFleet:
    """Delivers the script turn by turn; `work(client, visit, model)` computes an update from the model trained on.

    A client is sent its model when it is free and the version that the script names is there. `last_sent`: the version
    that a client was sent last, where that one is never answered.
    """

    def __init__(
        self,
        script: Iterable[Turn],
        work: Callable[[int, int, Vector], Vector],
        last_sent: Mapping[int, int] | None = None,
    ) -> None:
        turns = list(script)
        self._script: Iterator[Turn] = iter(turns)
        self._coming: dict[int, deque[int]] = {}  # client -> the versions it will have trained on
        for event in (event for turn in turns for event in turn):
            if not isinstance(event, Lost | Left):
                self._coming.setdefault(event[0], deque()).append(event[1])
        for client, version in (last_sent or {}).items():
            models = self._coming.setdefault(client, deque())
            if not models or version > models[-1]:
                models.append(version)
        self._at_work: set[int] = set()
        self._work = work
        self._models: dict[int, Vector] = {}
        self._visits: dict[int, int] = {}
        self._version = 0
        self._tasks = 0
        self.now = 0.0

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> list[int]:
        if version not in self._models:
            self._models[version] = model.clone()
        self._version = version
        sent = [client for client, models in self._coming.items() if models and models[0] <= version]
        sent = [client for client in sent if client not in self._at_work]
        self._at_work.update(sent)
        return sent

    def next(self) -> list[Event]:
        turn = next(self._script, None)
        if turn is None:
            raise NothingInFlight("the script has ended")
        self.now += 1.0
        return [event if isinstance(event, Lost | Left) else self._arrive(*event) for event in turn]

    def versions_out(self) -> set[int]:
        return set(self._models)

    def _arrive(self, client: int, trained_on: int) -> Arrival:
        if trained_on not in self._models:
            newest = max(self._models, default=-1)
            raise InvalidInput(f"client {client} trained on version {trained_on}; allowed: 0 to {newest}")
        self._coming[client].popleft()
        self._at_work.discard(client)
        visit = self._visits.get(client, 0)
        self._visits[client] = visit + 1
        self._tasks += 1
        update = self._work(client, visit, self._models[trained_on])
        return Arrival(client, update, trained_on, self._version, self._tasks)
