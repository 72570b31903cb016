"""acefl's own servers, for `conformance.check`."""

from __future__ import annotations

from typing import Any

import torch

from acefl import Arrival, Server
from acefl.rules import from_settings
from conformance.check import Arrivals


class _Tried:
    def __init__(self, server: Server) -> None:
        self._server, self._task = server, 0

    def arrive(self, arrivals: Arrivals) -> list[float]:
        version, came = self._server.version, []
        for client, update, staleness in arrivals:
            self._task += 1
            came.append(Arrival(client, torch.tensor(update), version - staleness, version, self._task))
        self._server.handle(came)
        model: list[float] = self._server.model.tolist()
        return model

    def join(self, clients: int) -> None:
        self._server.join(clients)

    def leave(self, client: int) -> None:
        self._server.leave(client)


def acefl_driver(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> _Tried:
    model = torch.tensor(start)
    return _Tried(Server(model, from_settings(method, settings).build(clients, model, [1] * clients), lr, clients))
