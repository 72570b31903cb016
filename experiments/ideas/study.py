"""Do our own ideas beat ACE, ACED and CA2FL, at equal arrivals and with equal tuning?

    python experiments/ideas/study.py --workers 16     # everything: board/, leaderboard.json and README.md here
    python experiments/ideas/study.py --board DIR      # with ACE's, ACED's and CA2FL's cells from that leaderboard
    python experiments/ideas/study.py --quick          # that it works, in a minute; into a temporary directory
    python experiments/ideas/study.py --show           # the tables of what is recorded

The leaderboard's six scenarios, two tasks and five seeds; every method is tuned in every cell with the same budget.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # so that worker processes find experiments.ideas.ideas

from experiments.leaderboard.publish import filled  # noqa: E402

from acefl.core.files import read_json  # noqa: E402
from acefl.paper.leaderboard import leaderboard  # noqa: E402
from acefl.report.metrics import by_key  # noqa: E402
from acefl.report.standings import TUNED_BY, Board  # noqa: E402
from acefl.report.statistics import half_width  # noqa: E402
from acefl.rules import parse  # noqa: E402

KNOWN = ("ACE", "ACED", "CA2FL")
IDEAS = ("DampedACE", "FadingACED", "MomentumACE")
ARRIVALS, BUDGET = 6000, 12.0


def run(out: Path, workers: int | None, quick: bool) -> Path:
    """Fill the board; called again it goes on."""
    rules = [*map(parse, KNOWN), *(parse(f"experiments.ideas.ideas:{name}") for name in IDEAS)]
    return leaderboard(
        rules,
        out=out,
        only=True,
        arrivals=ARRIVALS,
        budget=BUDGET,
        quick=quick,
        workers=workers,
        progress=lambda done, known, last: print(f"{done}/{known} {last}", file=sys.stderr),
    )


def take_over(board: Path, out: Path) -> None:
    """What is on a leaderboard of the same settings is not made again."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    shutil.copy(board / "board.json", out / "board.json")
    for path in board.glob("cells/*.json"):
        if read_json(path)["method"] in KNOWN:
            shutil.copy(path, out / "cells" / path.name)


def tables(board: Board) -> str:
    """Scores, and where an idea beats all three known methods by more than the paired 95 % interval."""
    parts = []
    for task, key in TUNED_BY.items():
        parts.append(f"### {task}: {key}\n\n{board.markdown(task, key)}")
    wins = [line for task in board.tasks for line in _wins(board, task)]
    compared = len(IDEAS) * len(board.tasks) * len(board.scenarios)
    asked = f"Of {compared} comparisons with all three, at 95 % each: a few are accidents.\n\n"
    parts.append("### Where an idea beats all three\n\n" + asked + ("\n".join(wins) or "Nowhere."))
    return "\n\n".join([*parts, f"{board.why_bold} {board.cost}."])


def _wins(board: Board, task: str) -> list[str]:
    key = TUNED_BY[task]
    lines = []
    for scenario in board.scenarios:
        metric = by_key(key)
        scores = {one.method: metric.scores(one.row["finals"][key]) for one in board.column(task, scenario, key)}
        for idea in IDEAS:
            if not all(map(math.isfinite, scores[idea])):
                continue
            leads = [surely_ahead(scores[idea], scores[known]) for known in KNOWN]
            if min(leads) > 0:
                ahead = f"a factor of {math.exp(min(leads)):.3g}" if metric.log else f"{min(leads):.3g}"
                lines.append(f"- {idea}, {task}, {scenario}: by {ahead} or more.")
    return lines


def surely_ahead(own: list[float], other: list[float]) -> float:
    """The lower end of the paired 95 % interval by which scores, of which less is better, are below another's."""
    if not all(map(math.isfinite, other)):
        return math.inf
    apart = [theirs - mine for mine, theirs in zip(own, other, strict=True)]
    return sum(apart) / len(apart) - half_width(apart)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--board", type=Path, default=None)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--show", action="store_true")
    chosen = options.parse_args()
    if chosen.show:
        print(tables(Board.read(HERE)))
        return
    if chosen.quick:
        with tempfile.TemporaryDirectory() as folder:
            print(tables(Board.read(run(Path(folder) / "board", chosen.workers, quick=True))))
        return
    if chosen.board is not None:
        take_over(chosen.board, HERE / "board")
    out = run(HERE / "board", chosen.workers, quick=False)
    shutil.copy(out / "leaderboard.json", HERE / "leaderboard.json")
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), "results", tables(Board.read(HERE))), encoding="utf-8")
    print(tables(Board.read(HERE)))


if __name__ == "__main__":
    main()
