"""Put a leaderboard on record: into the package, for `acefl leaderboard --recorded`, and into the docs, as tables.

    acefl leaderboard --workers 16 --out board
    python experiments/leaderboard/publish.py board

Without a directory the docs are written again from the record in the package. `--starts` adds to a record that has none
what the starting models score: seconds, as nothing is trained. `--cells DIR` makes a directory of the record, so that
methods the record has not can join it at the cost of their own cells:

    python experiments/leaderboard/publish.py --cells board
    acefl leaderboard --out board
    python experiments/leaderboard/publish.py board
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acefl.core.errors import require
from acefl.core.files import atomic_write, is_new, read_json, write_json
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.paper.leaderboard import MEANING, SCENARIOS, cell_name, shortened, write_board
from acefl.report.metrics import by_key
from acefl.report.standings import NOT_FOR_CITING, RECORDED, TUNED_BY, Board, written
from acefl.rules import ASGD
from acefl.runs.simulate import simulate
from acefl.tasks.sources import build_task

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "acefl" / "report" / RECORDED


def front_page(board: Board) -> str:
    """The board as the docs' front page has it."""
    parts = [f"*Not for citing: {NOT_FOR_CITING}.*"] if board.quick else []
    for task in board.tasks:
        key = board.shown(task)
        metric, tuned = by_key(key), by_key(TUNED_BY[task])
        better = "more is better" if metric.higher_is_better else "less is better"
        by = "it" if metric is tuned else tuned.heading
        said = f"**{task}**: {metric.heading}, {metric.meaning}; methods were tuned by {by}; {better}."
        parts.append(f"{said}\n\n{board.markdown(task)}")
    parts.append(f"**The slow**: {_slow(board)}")
    scenarios = "; ".join(f"*{name}*: {MEANING[name]}" for name in board.scenarios)
    parts.append(
        f"{board.why_bold} With {len(board.methods)} methods and {len(board.content['seeds'])} seeds only large and "
        "steady differences can be shown. How: `acefl.report.statistics`."
    )
    if board.shown("digits") == TUNED_BY["digits"]:
        parts.append(
            "The record is from before held-out scores per client: clients' losses and accuracies are on the data they "
            "train on. A board made today leads with the held-out ones."
        )
    parts.append(
        f"{board.cost}. FedAvg and FedAdam, which wait for rounds, have instead the virtual time in which the others "
        "send about as much, and make few steps in it. Tuned are lr, and `tau` or `buffer` where a method has them; "
        "all other settings are the library's defaults. Mean and 95 % interval over seeds; of the gap, the geometric "
        f"mean and the factor either way. {scenarios}."
    )
    return "\n\n".join(parts)


def _slow(board: Board) -> str:
    """The one column in which some clients are slower than others."""
    key = board.shown("digits", "slow_accuracy")
    metric = by_key(key)
    said = ", ".join(f"{one.method} {written(one, metric, bold='**')}" for one in board.column("digits", "spread", key))
    return f"{metric.meaning}, digits, *spread*: {said}."


def leaders(board: Board) -> str:
    """Who leads where, for those who choose."""
    lines = ["| scenario | " + " | ".join(board.tasks) + " |", "|---|" + "---|" * len(board.tasks)]
    for name in board.scenarios:
        columns = [board.column(task, name, board.shown(task)) for task in board.tasks]
        cells = [", ".join(one.method for one in column if one.leads) or "nobody is told apart" for column in columns]
        lines.append(f"| *{name}*: {MEANING[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add_starts(path: Path) -> None:
    """Score the starting models of a record from before cells kept them: the same seeds build the same ones."""
    content = read_json(path)
    known: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in content["rows"]:
        where = (row["task"], row["scenario"])
        if where not in known:
            task, scenario = content["tasks"][where[0]], SCENARIOS[where[1]]
            known[where] = [
                simulate(
                    build_task(task, seed), ASGD(), lr=1e-9, scenario=scenario, stop=Stop(arrivals=1), seed=seed
                ).metrics[0]
                for seed in content["seeds"]
            ]
        row["starts"] = {name: [shortened(start[name]) for start in known[where]] for name in row["finals"]}
    write_board(path, content)


def write_cells(content: Mapping[str, Any], folder: Path) -> None:
    """A board's directory from its record; settings of scenarios that came later stand at their defaults."""
    require(is_new(folder), f"{folder} is not empty; allowed: a new directory")
    scenarios = {name: dataclasses.asdict(Scenario(**own)) for name, own in content["scenarios"].items()}
    kept = ("format", "arrivals", "budget", "seeds", "tasks", "meaning", "tuned", "target", "references")
    (folder / "cells").mkdir(parents=True)
    write_json(folder / "board.json", {**{key: content[key] for key in kept if key in content}, "scenarios": scenarios})
    for row in content["rows"]:
        path = folder / "cells" / cell_name(row["task"], row["scenario"], row["method"])
        atomic_write(path, json.dumps(row, allow_nan=False))
    write_board(folder / RECORDED, dict(content))


PLACES = {"docs/index.md": ("leaderboard", front_page), "docs/choosing.md": ("leaders", leaders)}


def filled(text: str, name: str, content: str) -> str:
    """The text with what stands between the two marks of this name replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"no marks for {name}"
    return pattern.sub(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)


def record(directory: Path, to: Path) -> None:
    """Keep the board of a directory; nobody's folders are on record."""
    Board.read(directory)
    command = read_json(directory / RECORDED)["command"]
    hidden = re.sub(r"(?<=[ =])(?:/|~|\.\.)\S*", "PATH", command)
    atomic_write(to, (directory / RECORDED).read_text(encoding="utf-8").replace(command, hidden))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", nargs="?", type=Path)
    options.add_argument("--starts", action="store_true")
    options.add_argument("--cells", type=Path, metavar="DIR")
    given = options.parse_args()
    if given.cells is not None:
        write_cells(Board.recorded().content, given.cells)
        print(f"wrote {given.cells}")
        return
    directory = given.directory
    if directory is not None:
        record(directory, PACKAGE)
    if given.starts:
        add_starts(PACKAGE)
    board = Board.recorded()
    for page, (name, content) in PLACES.items():
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), name, content(board)), encoding="utf-8")
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
