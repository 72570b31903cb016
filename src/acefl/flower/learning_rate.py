"""A learning rate that needs no thought, for clients that train and send their arrays.

FedAvg replaces the model by the mean of what clients made of it: while everybody answers once, the model moves by one
mean update. The same is right for a method that steps more often, so the learning rate is one over the number of steps
it makes in that time. How many these are is found by trying: the method's rule is handed empty updates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from acefl.core.loop import run
from acefl.core.optimizers import SGD, Momentum, Nesterov, Optimizer
from acefl.core.rule import Method, Upload
from acefl.core.server import Server
from acefl.core.settings import settings_of
from acefl.core.stop import Stop
from acefl.core.types import Arrival, Event, Vector

ADAPTIVE = 0.01  # of Adam and the like, whose steps do not depend on how long updates are
TURNS = 4  # answers of everybody that are counted, once everybody has answered twice


def default_lr(method: Method, nodes: int, optimizer: Optimizer | None = None) -> float:
    """The learning rate with which a method moves the model by one mean update while every node answers once.

    Args:
        method: Settings of a method.
        nodes: How many there are.
        optimizer: Of the server, if the caller asked for one.
    """
    if method.uploads is Upload.MODEL:
        return 1.0  # the method itself says how much of a client's model is taken
    return _base(optimizer or method.optimizer) / max(1.0, steps_per_round(method, nodes))


def steps_per_round(method: Method, nodes: int) -> float:
    """How many steps a method makes while every one of equally fast nodes answers once.

    Args:
        method: Settings of a method.
        nodes: How many there are.
    """
    if "home" in settings_of(method):
        method = dataclasses.replace(method, home="memory")  # type: ignore[type-var]  # no file for one number
    like = torch.zeros(1)
    fleet = _InTurn(nodes)
    server = Server(like, method.build(nodes, like), 1.0, nodes)
    steps = [step.version for step in run(server, fleet, Stop(arrivals=(2 + TURNS) * nodes))]
    return (steps[-1] - steps[min(2 * nodes, len(steps)) - 1]) / TURNS


class _InTurn:
    """Nodes that answer in the order in which they were asked, with nothing."""

    now = 0.0

    def __init__(self, nodes: int) -> None:
        self._idle, self._asked = list(range(nodes)), list[tuple[int, int]]()
        self._new = set(range(nodes))
        self._tasks = self._version = 0

    def dispatch(self, model: Vector, version: int, *, newcomers_only: bool) -> Sequence[int]:
        if not newcomers_only:
            self._new = set(self._idle)
        self._version = version
        asked = [client for client in self._idle if client in self._new]
        self._new -= set(asked)
        self._idle = [client for client in self._idle if client not in asked]
        self._asked += [(client, version) for client in asked]
        return asked

    def next(self) -> list[Event]:
        client, trained_on = self._asked.pop(0)
        self._idle.append(client)
        self._tasks += 1
        return [Arrival(client, torch.zeros(1), trained_on, self._version, self._tasks)]

    def versions_out(self) -> set[int]:
        return {version for _, version in self._asked}


def _base(optimizer: Optimizer | None) -> float:
    """What a step is multiplied by so that, in the long run, it goes as far as the direction says."""
    if optimizer is None or isinstance(optimizer, SGD):
        return 1.0
    if isinstance(optimizer, Nesterov):
        return (1.0 - optimizer.beta) * optimizer.period
    return 1.0 - optimizer.beta if isinstance(optimizer, Momentum) else ADAPTIVE
