"""Asynchronous training on Flower: `run_async` in the ServerApp, `send_update` or `answer` in the ClientApp.

Needs the extra `acefl[flower]`. Names are loaded when first used: a ClientApp's process, which Flower starts anew for
every message, does not load the server's side.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acefl.fleets.flower.client import answer, send_update
    from acefl.fleets.flower.fleet import FlowerFleet, Wires
    from acefl.flower.serverapp import run_async

_HOME = {
    "FlowerFleet": "fleets.flower.fleet",
    "Wires": "fleets.flower.fleet",
    "answer": "fleets.flower.client",
    "run_async": "flower.serverapp",
    "send_update": "fleets.flower.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'acefl.flower' has no attribute {name!r}")
    return getattr(import_module(f"acefl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["FlowerFleet", "Wires", "answer", "run_async", "send_update"]
