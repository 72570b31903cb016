"""Is c best chosen by itself? `AutoCalibrated` (auto.py) against a fixed c and the family's five corners.

    python experiments/ideas/auto_study.py [--workers 1]    # fills auto.json, goes on where it stopped; then README.md
    python experiments/ideas/auto_study.py --show           # the table of what is recorded

Two tasks, three scenarios, five seeds; every method is tuned in every cell with the same small budget. The bar: not
worse than the best corner in any cell, better than all of them in some.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # so that worker processes find experiments.ideas.auto

from experiments.ideas.study import surely_ahead  # noqa: E402
from experiments.leaderboard.publish import filled  # noqa: E402

from acefl.core.files import atomic_write, read_json  # noqa: E402
from acefl.core.rule import Method  # noqa: E402
from acefl.paper.leaderboard import SCENARIOS, TASKS, Cell, stop_of  # noqa: E402
from acefl.report.metrics import by_key  # noqa: E402
from acefl.report.standings import TUNED_BY  # noqa: E402
from acefl.rules import label, parse  # noqa: E402
from acefl.studies.jobs import Job, open_jobs  # noqa: E402

CORNERS = ("ACE", "MIFA", "CA2FL", "FedBuff", "ASGD")
FIXED, AUTO = "Calibrated", "AutoCalibrated"
CHOSEN = ("equal", "spread", "heavy tail")
ARRIVALS, BUDGET, SEEDS = 3000, 10.0, (1, 2, 3, 4, 5)
RESULTS = HERE / "auto.json"


def run(workers: int | None) -> None:
    fill([*map(parse, (*CORNERS, FIXED)), parse(f"experiments.ideas.auto:{AUTO}")], RESULTS, workers)


def fill(rules: list[Method], results: Path, workers: int | None) -> None:
    """Every cell of these methods, into one file; a study that was killed goes on where it was."""
    folder = Path(tempfile.gettempdir()) / f"acefl-{results.stem}-study"
    folder.mkdir(exist_ok=True)
    cells = [
        Cell(
            *(task, name, rule, settings, stop_of(rule, SCENARIOS[name], int(settings["clients"]), ARRIVALS)),
            *(BUDGET, SEEDS, folder / f"{task}-{name}-{label(rule)}.json".replace(" ", "-")),
        )
        for rule in rules
        for task, settings in TASKS.items()
        for name in CHOSEN
    ]
    waiting = [Job(Cell.fill, cell, cell, f"{label(cell.rule)}: {cell.task}, {cell.scenario}") for cell in cells]
    told = lambda done, known, last: print(f"{done}/{known} {last}", file=sys.stderr)  # noqa: E731
    with open_jobs(workers) as jobs:
        jobs.run(waiting, recorded=lambda job: job.key.path.exists() or None, progress=told)
    rows = [read_json(cell.path) for cell in cells]
    atomic_write(results, json.dumps({"arrivals": ARRIVALS, "budget": BUDGET, "seeds": SEEDS, "rows": rows}, indent=1))
    shutil.rmtree(folder)


def table(recorded: dict[str, Any]) -> str:
    """Mean scores, and the verdict on AutoCalibrated in every cell by paired 95 % intervals."""
    methods = (*CORNERS, FIXED, AUTO)
    head = f"| task, scenario | {' | '.join(methods)} | AutoCalibrated against the corners |"
    lines = [head, "|---" * (len(methods) + 2) + "|"]
    verdicts = []
    for task, key in TUNED_BY.items():
        for scenario in CHOSEN:
            rows = {r["method"]: r for r in recorded["rows"] if (r["task"], r["scenario"]) == (task, scenario)}
            scores = {name: by_key(key).scores(row["finals"][key]) for name, row in rows.items()}
            verdicts.append(verdict(scores))
            means = [mean_of(rows[name]["finals"][key], log=by_key(key).log) for name in methods]
            lines.append(f"| {task}, {scenario} | {' | '.join(means)} | {verdicts[-1]} |")
    better, worse = verdicts.count("better than all"), verdicts.count("worse than the best")
    told = f"Better than all five in {better} of {len(verdicts)} cells, worse than the best in {worse}."
    kept = "It reaches the bar." if better and not worse else "It does not reach the bar, and is not in the library."
    seconds = sum(row["seconds"] for row in recorded["rows"])
    cost = (
        f"{recorded['arrivals']:,} arrivals, {len(recorded['seeds'])} seeds, each cell tuned with a budget of "
        f"{recorded['budget']:g} whole runs; {seconds / 60:.0f} minutes of a shared machine. Client loss on digits, "
        "gap on quadratic (geometric mean); less is better. By differences on the same seed, at 95 %."
    )
    return "\n".join([*lines, "", f"{told} {kept} {cost}"])


def verdict(scores: dict[str, list[float]]) -> str:
    corners = {name: scores[name] for name in CORNERS}
    if not all(map(math.isfinite, scores[AUTO])):
        return "worse than the best"
    best = min(corners.values(), key=lambda own: sum(own) if all(map(math.isfinite, own)) else math.inf)
    if min(surely_ahead(scores[AUTO], own) for own in corners.values()) > 0:
        return "better than all"
    return "worse than the best" if surely_ahead(best, scores[AUTO]) > 0 else "cannot be told"


def mean_of(finals: list[float | None], *, log: bool) -> str:
    known = [math.nan if value is None else value for value in finals]
    if log:
        return f"{math.exp(sum(map(math.log, known)) / len(known)):.2g}"
    return f"{sum(known) / len(known):.3f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--show", action="store_true")
    chosen = options.parse_args()
    if not chosen.show:
        run(chosen.workers)
        readme = HERE / "README.md"
        text = filled(readme.read_text(encoding="utf-8"), "auto", table(read_json(RESULTS)))
        readme.write_text(text, encoding="utf-8")
    print(table(read_json(RESULTS)))


if __name__ == "__main__":
    main()
