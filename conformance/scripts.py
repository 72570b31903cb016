"""The scripts of arrivals that every method is led through. Plain numbers; nothing here knows a method.

Numbers are multiples of 1/8, which every framework's float32 holds exactly.
"""

from __future__ import annotations

import random
from typing import Any

DIM = 3
START = [1.0, -0.5, 2.0]
LR = 0.25

Event = dict[str, Any]
Script = dict[str, Any]


def scripts() -> list[Script]:
    """One turn at a time: a turn is what arrives before one step, or a client that joins or leaves."""
    return [
        _script("one-by-one", "Three clients of different speed, one arrival per turn.", 3, _one_by_one()),
        _script("together", "Turns of up to three arrivals, some of the same client, some very stale.", 4, _together()),
        _script("rounds", "Everybody sends an update of the current model, in changing order.", 3, _rounds()),
        _script("elastic", "Clients join and leave between turns.", 3, _elastic()),
    ]


def _script(name: str, about: str, clients: int, turns: list[list[tuple[int, int]] | Event]) -> Script:
    """Turns of (client, age): age is how many versions ago the client got its model, at most as many as there are."""
    draw = random.Random(name)
    events: list[Event] = []
    for turn in turns:
        if isinstance(turn, dict):
            events.append(turn)
            continue
        arrivals = [
            {"client": client, "age": age, "update": [draw.randrange(-16, 17) / 8 for _ in range(DIM)]}
            for client, age in turn
        ]
        events.append({"arrivals": arrivals})
    return {"name": name, "about": about, "clients": clients, "start": START, "lr": LR, "events": events}


def _one_by_one() -> list[list[tuple[int, int]] | Event]:
    order = [0, 1, 0, 2, 0, 0, 1, 0, 1, 0, 0, 2, 1, 0, 0, 1]
    last: dict[int, int] = {}
    turns: list[list[tuple[int, int]] | Event] = []
    for place, client in enumerate(order):
        turns.append([(client, place - last.get(client, 0))])
        last[client] = place + 1
    return turns


def _together() -> list[list[tuple[int, int]] | Event]:
    return [
        *([(0, 0)], [(1, 0), (2, 0)], [(3, 0)], [(0, 1), (0, 0)], [(1, 2)], [(2, 9), (3, 9), (0, 0)]),
        *([(1, 0)], [(1, 1), (2, 3)], [(3, 1)], [(0, 0), (1, 0), (2, 0)], [(3, 5)], [(0, 0)]),
    ]


def _rounds() -> list[list[tuple[int, int]] | Event]:
    return [[(client, 0)] for client in (0, 1, 2, 2, 0, 1, 1, 0, 2)]


def _elastic() -> list[list[tuple[int, int]] | Event]:
    return [
        *([(0, 0)], [(1, 0)], [(2, 0)], [(0, 1)], {"leave": 1}, [(2, 1)], [(0, 0)], {"join": 4}, [(3, 0)], [(0, 2)]),
        *([(2, 0)], {"leave": 0}, [(3, 1)], [(2, 3)], [(1, 4)], [(3, 0)], {"join": 5}, [(4, 0)], [(2, 1)], [(3, 2)]),
    ]
