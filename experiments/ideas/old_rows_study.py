"""Are old rows worth correcting? `SecantACE` (secant.py) and `SteeredACE` (steered.py) against ACE, ACED and CA2FL.

    python experiments/ideas/old_rows_study.py [--workers 1]    # fills old_rows.json; then README.md
    python experiments/ideas/old_rows_study.py --show           # the table of what is recorded

The cells, seeds and budget of auto_study.py, whose record has ACE's and CA2FL's. The bar is that of the first ideas.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # so that worker processes find experiments.ideas

from experiments.ideas import auto_study  # noqa: E402
from experiments.ideas.study import KNOWN, surely_ahead  # noqa: E402
from experiments.leaderboard.publish import filled  # noqa: E402

from acefl.core.files import read_json  # noqa: E402
from acefl.report.metrics import by_key  # noqa: E402
from acefl.report.standings import TUNED_BY  # noqa: E402
from acefl.rules import parse  # noqa: E402

MODULES = {"SecantACE": "secant", "SteeredACE": "steered"}
IDEAS = tuple(MODULES)
RESULTS = HERE / "old_rows.json"

Recorded = dict[str, Any]


def run(workers: int | None) -> None:
    """ACED's cells, which auto.json does not have, and the ideas'."""
    named = [f"experiments.ideas.{module}:{idea}" for idea, module in MODULES.items()]
    auto_study.fill([parse(name) for name in (*named, "ACED")], RESULTS, workers)


def rows() -> list[Recorded]:
    """What is recorded of the known methods and of the ideas."""
    found: list[Recorded] = [*read_json(auto_study.RESULTS)["rows"], *read_json(RESULTS)["rows"]]
    return [row for row in found if row["method"] in (*KNOWN, *IDEAS)]


def table(recorded: list[Recorded]) -> str:
    """Mean scores, and where an idea is ahead of all three, or behind one, by paired 95 % intervals."""
    methods = (*KNOWN, *IDEAS)
    lines = [f"| task, scenario | {' | '.join(methods)} |", "|---" + "|--:" * len(methods) + "|"]
    ahead: dict[str, list[str]] = {idea: [] for idea in IDEAS}
    behind: dict[str, list[str]] = {idea: [] for idea in IDEAS}
    for task, key in TUNED_BY.items():
        for scenario in auto_study.CHOSEN:
            here = {row["method"]: row for row in recorded if (row["task"], row["scenario"]) == (task, scenario)}
            scores = {name: by_key(key).scores(row["finals"][key]) for name, row in here.items()}
            means = [auto_study.mean_of(here[name]["finals"][key], log=by_key(key).log) for name in methods]
            lines.append(f"| {task}, {scenario} | {' | '.join(means)} |")
            for idea in IDEAS:
                verdict = against_all(scores[idea], [scores[known] for known in KNOWN])
                {"ahead": ahead, "behind": behind}.get(verdict, {idea: []})[idea].append(f"{task}, {scenario}")
    told = [
        f"- {idea}: ahead of all three in {_cells(ahead[idea])}; behind the best of them in {_cells(behind[idea])}. "
        + ("It reaches the bar on these tasks." if _on_both(ahead[idea]) else "It does not reach the bar.")
        for idea in IDEAS
    ]
    seconds = sum(row["seconds"] for row in recorded if row["method"] not in ("ACE", "CA2FL"))
    cost = (
        f"{auto_study.ARRIVALS:,} arrivals, {len(auto_study.SEEDS)} seeds, each cell tuned with a budget of "
        f"{auto_study.BUDGET:g} whole runs; {seconds / 60:.0f} minutes of a shared machine beyond what auto.json has. "
        "Client loss on digits, gap on quadratic (geometric mean); less is better. By differences on the same seed, at "
        "95 % in each of the cells, so that a verdict may be an accident."
    )
    return "\n".join([*lines, "", *told, "", cost])


def against_all(own: list[float], others: list[list[float]]) -> str:
    """`ahead` of every other, `behind` one of them, or neither."""
    if not all(map(math.isfinite, own)):
        return "behind"
    if min(surely_ahead(own, other) for other in others) > 0:
        return "ahead"
    sound = [other for other in others if all(map(math.isfinite, other))]
    return "behind" if any(surely_ahead(other, own) > 0 for other in sound) else "level"


def _cells(found: list[str]) -> str:
    return f"{len(found)} of 6 cells ({'; '.join(found)})" if found else "none"


def _on_both(cells: list[str]) -> bool:
    return {cell.partition(",")[0] for cell in cells} == set(TUNED_BY)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--show", action="store_true")
    chosen = options.parse_args()
    if not chosen.show:
        run(chosen.workers)
        readme = HERE / "README.md"
        readme.write_text(filled(readme.read_text(encoding="utf-8"), "old rows", table(rows())), encoding="utf-8")
    print(table(rows()))


if __name__ == "__main__":
    main()
