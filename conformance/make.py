"""Write the vectors: `python -m conformance.make [FILE]`, by default conformance/vectors.json.

Every number of the models comes from the dense oracles, none from the library's rules.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from conformance.check import VECTORS
from conformance.oracles import Case, cases, start_of
from conformance.scripts import LR, Script, scripts

FORMAT = 1


def vectors() -> dict[str, Any]:
    """The scripts, and for every method and script the model after each event; None: it is the one before."""
    known = scripts()
    return {
        "format": FORMAT,
        "scripts": known,
        "methods": [
            {
                "method": case.method,
                "settings": case.settings,
                "formula": case.formula,
                "models": {script["name"]: models(case, script) for script in known if _fits(case, script)},
            }
            for case in cases(LR)
        ],
    }


def models(case: Case, script: Script) -> list[list[float] | None]:
    """After each event of the script: the model, or None where it did not step."""
    federation = case.build(script["clients"], start_of(script))
    found: list[list[float] | None] = []
    for event in script["events"]:
        stepped = False
        if "join" in event:
            federation.join(event["join"])
        elif "leave" in event:
            federation.leave(event["leave"])
        else:
            came = [(one["client"], np.array(one["update"]), one["age"]) for one in event["arrivals"]]
            stepped = federation.turn(came)
        found.append([float(f"{number:.12g}") for number in federation.model] if stepped else None)
    return found


def _fits(case: Case, script: Script) -> bool:
    return case.elastic or all("arrivals" in event for event in script["events"])


def text(made: dict[str, Any]) -> str:
    """JSON with an event or a model per line, so that a change can be read."""
    scripts = [_block({**script, "events": _lines(script["events"])}) for script in made["scripts"]]
    methods = [
        _block({**one, "models": _block({name: _lines(found) for name, found in one["models"].items()})})
        for one in made["methods"]
    ]
    return _block({"format": made["format"], "scripts": _list(scripts), "methods": _list(methods)}) + "\n"


class _Text(str):
    """What is JSON already."""


def _lines(values: list[Any]) -> _Text:
    return _list([_Text(json.dumps(value, allow_nan=False)) for value in values])


def _list(parts: list[_Text]) -> _Text:
    return _Text("[\n" + ",\n".join(parts) + "\n]")


def _block(fields: dict[str, Any]) -> _Text:
    parts = [f"{json.dumps(key)}: {one if isinstance(one, _Text) else json.dumps(one)}" for key, one in fields.items()]
    return _Text("{\n" + ",\n".join(parts) + "\n}")


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else VECTORS
    made = vectors()
    target.write_text(text(made), encoding="utf-8")
    print(f"{target}: {len(made['scripts'])} scripts, {len(made['methods'])} methods with their settings")


if __name__ == "__main__":
    main()
