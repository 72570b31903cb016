"""The paper's figures and tables on real data: `acefl reproduce NAME`.

A recipe is one file here; this package runs recipes, records every run as a line of JSON, and writes a page with our
values beside the paper's. Imports that load torch wait until a function is called: the command line reads the names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acefl.core.errors import InvalidInput, require
from acefl.core.files import is_new, read_json, write_json
from acefl.core.settings import plain

if TYPE_CHECKING:
    from acefl.core.progress import Progress
    from acefl.paper.plan import Recipe, Request
    from acefl.paper.records import Ledger, Record
    from acefl.paper.runner import Outcome

NAMES = (
    "cifar10-main",
    "cifar10-extended",
    "dropout",
    "cifar100-heatmap",
    "news20-table",
    "quantization",
    "rates-table",
    "overheads-table",
    "amplification",
    "readings",
)
FORMS = ("printed", "tuned")
_NOTE = "reproduce.json"
_SAME = ("quick", "model", "device", "folder", "start")  # what all runs of a directory share


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in NAMES:
        raise InvalidInput(f"unknown recipe {name!r}; allowed: {', '.join(NAMES)}")
    found: Recipe = importlib.import_module(f"acefl.paper.{name.replace('-', '_')}").RECIPE
    return found


def reproduce(
    name: str,
    request: Request,
    out: Path,
    *,
    command: str,
    workers: int | None = None,
    limit: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Make the runs that `out` does not have yet, and write its page.

    `out` holds `results.jsonl`, `README.md`, figures, and the commands that were given. Called again with another form
    or other seeds it adds to what is there; another model, size, device or folder of data wants a directory of its own,
    since a page takes means over all runs of an entry.
    """
    from acefl.paper import runner
    from acefl.paper.records import Ledger

    chosen = recipe(name)
    require(request.form in chosen.forms, f"form is {request.form!r}; allowed for {name}: {', '.join(chosen.forms)}")
    require(request.start is None or name == "readings", f"start is given for {name}; allowed for readings alone")
    whose = (out, name, command, {key: plain(getattr(request, key)) for key in _SAME})
    _note(*whose)  # what cannot be claimed is refused before a run is made
    claim = partial(_claim, *whose)
    plan = chosen.plan(request)
    outcome = runner.run(plan, {name: out}, workers=workers, limit=limit, progress=progress, begin=claim)
    measured = [] if chosen.measure is None else chosen.measure(request)
    claim()
    ledger = Ledger(out / "results.jsonl")
    outcome.done += _add_new(ledger, measured)
    write_page(out)
    return outcome


def write_page(out: Path) -> Path:
    """The page of a recorded directory, from its files alone."""
    from acefl.paper.page import build
    from acefl.paper.records import Ledger

    note = read_json(out / _NOTE)
    records = list(Ledger(out / "results.jsonl").records.values())
    commands, remarks = ([str(line) for line in note.get(key, [])] for key in ("commands", "remarks"))
    return build(recipe(str(note.get("recipe"))), out, records, commands, remarks)


def _claim(out: Path, name: str, command: str, asked: dict[str, Any]) -> None:
    """Write down whose directory this is.

    Not before there is something to put in it: a request that turns out to be refused leaves nothing behind.
    """
    note = _note(out, name, command, asked)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / _NOTE, note)


def _note(out: Path, name: str, command: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What is written down of a directory; one that holds another recipe, or something else, is refused."""
    from acefl.runs.record import FORMAT

    path = out / _NOTE
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    require(writable, f"nothing can be written to {nearest}; give another --out")
    note: dict[str, Any] = {}
    if path.exists():
        note = read_json(path)
        require(note.get("recipe") == name, f"{out} holds recipe {note.get('recipe')}; allowed: a directory of its own")
        for key, value in asked.items():
            there = note.get("asked", asked).get(key)
            require(there == value, f"{out} holds runs with {key} {there}, not {value}; give another --out")
    else:
        require(is_new(out), f"{out} is not empty and holds no recipe; give another --out")
    commands = list(dict.fromkeys([*note.get("commands", []), command]))
    remarks = list(note.get("remarks", []))
    return {"format": FORMAT, "recipe": name, "commands": commands, "remarks": remarks, "asked": asked}


def merge(lines: Sequence[Path], out: Path, change: Callable[[Record], Record] = lambda record: record) -> int:
    """Add records made elsewhere (files of JSON lines), each as `change` has it, to a directory: how many were new."""
    from acefl.paper.records import Ledger

    ledger = Ledger(out / "results.jsonl")
    return sum(_add_new(ledger, map(change, Ledger(path).records.values())) for path in lines)


def _add_new(ledger: Ledger, records: Iterable[Record]) -> int:
    """Add what is not there yet: how many records that were."""
    added = 0
    for record in records:
        if record["cell"] not in ledger.records:
            ledger.add(record)
            added += 1
    return added
