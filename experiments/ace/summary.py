"""The tables of README.md beside this file, from the records under recorded/.

python experiments/ace/summary.py   # write them again
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from experiments.leaderboard.publish import filled  # noqa: E402

from acefl import paper as reproduce  # noqa: E402
from acefl.core.files import read_json  # noqa: E402
from acefl.paper import readings  # noqa: E402
from acefl.paper.records import Ledger, Results, spread  # noqa: E402


def results(name: str) -> Results:
    return Results(Ledger(HERE / "recorded" / name / "results.jsonl").records.values())


def recorded() -> str:
    """What there is of each recipe, and what became of the paper's sentences."""
    lines = ["| recipe | runs | seeds of an entry | the paper says | here |", "|---|--:|--:|---|---|"]
    for folder in sorted((HERE / "recorded").iterdir()):
        own, recipe = results(folder.name), reproduce.recipe(read_json(folder / "reproduce.json")["recipe"])
        counts = sorted({len(own.where(**record["labels"]).records) for record in own.records})
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        said = [(claim.text, claim.verdict(own) or "not enough runs yet") for claim in recipe.claims] or [
            ("", "see the page")
        ]
        for place, (text, verdict) in enumerate(said):
            head = [f"[{folder.name}](recorded/{folder.name}/README.md)", str(len(own.records)), seeds]
            lines.append("| " + " | ".join([*(head if place == 0 else ["", "", ""]), text, verdict]) + " |")
    return "\n".join(lines)


def readings_table() -> str:
    """One change at a time: final test accuracy. Vanilla ASGD, one client at a time, is the same run at every β."""
    own = results("readings")
    columns = [(method, beta) for beta in (5.0, 30.0) for method in ("ACE", "CA2FL", "FedBuff")] + [("ASGD", 30.0)]
    names = [f"{method}, β = {beta:g}" if method != "ASGD" else method for method, beta in columns]
    lines = ["| change | " + " | ".join(names) + " |"]
    lines.append("|---|" + "--:|" * len(columns))
    wanted = [*readings.CHANGES, *(change for change in own.having("change") if change not in readings.CHANGES)]
    for change in wanted:
        cells = [spread(own.values("accuracy", change=change, method=m, beta=b)) or "–" for m, b in columns]
        lines.append(f"| {change} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str) -> str:
    return filled(filled(text, "recorded", recorded()), "readings", readings_table())


if __name__ == "__main__":
    path = HERE / "README.md"
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
