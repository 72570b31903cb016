"""Hold something that steps a model against the vectors: `python -m conformance.check` does so with acefl.

A driver is called with a method's name and settings, the number of clients, the first model and the learning rate. It
returns an object with `arrive(arrivals) -> model`, `join(clients)` and `leave(client)`, or None where it does not have
the method. `arrivals` is a list of (client, update, staleness) that come before one step. What the server cannot do,
such as taking in two arrivals before it steps, raises `CannotDo`: there is no verdict on that script then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

VECTORS = Path(__file__).parent / "vectors.json"
CLOSE = 1e-5  # of numbers about 1, in float32

Arrivals = list[tuple[int, list[float], int]]


class CannotDo(Exception):
    """The server that is tried does not have this."""


class Tried(Protocol):
    """A server of the framework that is tried."""

    def arrive(self, arrivals: Arrivals) -> Sequence[float]: ...

    def join(self, clients: int) -> None: ...

    def leave(self, client: int) -> None: ...


Driver = Callable[[str, dict[str, Any], int, list[float], float], Tried | None]


@dataclass(frozen=True)
class Verdict:
    """What came of one method on one script; `event` is the first one after which the model differed."""

    method: str
    settings: dict[str, Any]
    script: str
    event: int | None = None
    found: list[float] | None = None
    expected: list[float] | None = None

    @property
    def agrees(self) -> bool:
        return self.event is None

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        name = f"{self.method}({settings}), {self.script}"
        return f"{name}: agrees" if self.agrees else f"{name}: event {self.event}: {self.found}, not {self.expected}"


def check(driver: Driver, vectors: dict[str, Any] | None = None) -> list[Verdict]:
    """One verdict for each method and script that the driver has."""
    known = vectors or json.loads(VECTORS.read_text(encoding="utf-8"))
    scripts = {script["name"]: script for script in known["scripts"]}
    found = []
    for vector in known["methods"]:
        for name, models in vector["models"].items():
            script = scripts[name]
            tried = driver(vector["method"], vector["settings"], script["clients"], script["start"], script["lr"])
            if tried is not None:
                with suppress(CannotDo):
                    found.append(_follow(tried, vector, script, models))
    return found


def _follow(tried: Tried, vector: dict[str, Any], script: dict[str, Any], models: list[list[float] | None]) -> Verdict:
    model, version = script["start"], 0
    for number, (event, expected) in enumerate(zip(script["events"], models, strict=True)):
        if "join" in event:
            tried.join(event["join"])
            continue
        if "leave" in event:
            tried.leave(event["leave"])
            continue
        came = [(one["client"], one["update"], min(one["age"], version)) for one in event["arrivals"]]
        after = [float(value) for value in tried.arrive(came)]
        if expected is not None:
            model, version = expected, version + 1
        if max(abs(one - two) for one, two in zip(after, model, strict=True)) > CLOSE:
            return Verdict(vector["method"], vector["settings"], script["name"], number, after, model)
    return Verdict(vector["method"], vector["settings"], script["name"])


def main() -> int:
    from conformance.acefl_driver import acefl_driver

    verdicts = check(acefl_driver)
    for verdict in verdicts:
        print(verdict)
    return 0 if all(verdict.agrees for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
