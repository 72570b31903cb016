"""Put a leaderboard on record: into the package, where `acefl advise` reads it, and into the docs, as tables.

    acefl leaderboard --workers 16 --out board
    python experiments/leaderboard/publish.py board

Without a directory the docs are written again from the record in the package.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from acefl.advise import decision_table
from acefl.leaderboard import MEANING
from acefl.report.metrics import by_key
from acefl.report.standings import RECORDED, SHOWN, Board, written

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "acefl" / RECORDED


def front_page(board: Board) -> str:
    """The board as the docs' front page has it."""
    parts = []
    for task in board.tasks:
        metric = by_key(SHOWN[task])
        better = "more is better" if metric.higher_is_better else "less is better"
        said = f"**{task}**: {metric.heading}, {metric.meaning}, which methods were tuned by; {better}."
        parts.append(f"{said}\n\n{board.markdown(task)}")
    parts.append(f"**The slow**: {_slow(board)}")
    scenarios = "; ".join(f"*{name}*: {MEANING[name]}" for name in board.scenarios)
    parts.append(
        f"{board.cost}. FedAvg and FedAdam, which wait for rounds, have instead the virtual time in which the others "
        "send about as much, and make few steps in it. Tuned are lr, and `tau` or `buffer` where a method has them; "
        "all other settings are the library's defaults. Mean and 95 % interval over seeds; of the gap, the geometric "
        "mean and the factor either way. "
        "Bold: the best, and whoever cannot be told apart from it (paired 95 % interval; of so many comparisons some "
        f"are accidents). {scenarios}."
    )
    return "\n\n".join(parts)


def _slow(board: Board) -> str:
    """The one column in which some clients are slower than others."""
    metric = by_key("slow_accuracy")
    column = board.column("digits", "spread", "slow_accuracy")
    said = ", ".join(f"{one.method} {written(one, metric, bold='**')}" for one in column)
    return f"accuracy of the slowest fifth of clients on their own data, digits, *spread*: {said}."


PLACES = {"docs/index.md": ("leaderboard", front_page), "docs/choosing.md": ("decisions", decision_table)}


def filled(text: str, name: str, content: str) -> str:
    """The text with what stands between the two marks of this name replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"no marks for {name}"
    return pattern.sub(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", nargs="?", type=Path)
    directory = options.parse_args().directory
    if directory is not None:
        Board.read(directory)
        shutil.copy(directory / RECORDED, PACKAGE)
    board = Board.recorded()
    for page, (name, content) in PLACES.items():
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), name, content(board)), encoding="utf-8")
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
