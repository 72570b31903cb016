"""A fleet that delivers what it is told: for tests, and to replay what a real federation recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from acefl.errors import InvalidInput, NothingInFlight
from acefl.types import Arrival, Event, Left, Lost, Vector

Turn = Sequence[
    tuple[int, int] | Lost | Left
]  # who arrives and on which model version it trained; what was lost; who left


class ScriptedFleet:
    """Delivers the script turn by turn; `work(client, visit, model)` computes an update from the model trained on."""

    def __init__(self, script: Iterable[Turn], work: Callable[[int, int, Vector], Vector]) -> None:
        self._script: Iterator[Turn] = iter(script)
        self._work = work
        self._models: dict[int, Vector] = {}
        self._visits: dict[int, int] = {}
        self._version = 0
        self._tasks = 0
        self.now = 0.0

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> None:
        if version not in self._models:
            self._models[version] = model.clone()
        self._version = version

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
        visit = self._visits.get(client, 0)
        self._visits[client] = visit + 1
        self._tasks += 1
        update = self._work(client, visit, self._models[trained_on])
        return Arrival(client, update, trained_on, self._version, self._tasks)
