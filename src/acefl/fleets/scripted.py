"""A fleet that delivers what it is told: for tests, and to replay what a real federation recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from acefl.errors import NothingInFlight
from acefl.types import Arrival, Lost, Vector

Script = Iterable[list[tuple[int, int]]]  # turns, each a list of (client, model version it trained on)


class ScriptedFleet:
    """Each turn of the script names who arrives and on which version; `work` computes the update from that model."""

    def __init__(self, script: Script, work: Callable[[int, int, Vector], Vector]) -> None:
        self._script: Iterator[list[tuple[int, int]]] = iter(script)
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

    def next(self) -> list[Arrival | Lost]:
        turn = next(self._script, None)
        if turn is None:
            raise NothingInFlight("the script has ended")
        self.now += 1.0
        return [self._arrive(client, trained_on) for client, trained_on in turn]

    def _arrive(self, client: int, trained_on: int) -> Arrival:
        visit = self._visits.get(client, 0)
        self._visits[client] = visit + 1
        self._tasks += 1
        update = self._work(client, visit, self._models[trained_on])
        return Arrival(client, update, trained_on, self._version, self._tasks)
