"""Put the natural leaderboard on record, and write `docs/which-method.md` from it.

    acefl leaderboard --natural --out natural-board
    python -m experiments.leaderboard.which_method natural-board

Without a directory the page is written again from the record. Everything on it that names a method follows from the
record by the rules below; nobody writes it by hand.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from experiments.leaderboard.publish import ROOT, filled, record

from acefl.core.files import read_json
from acefl.report.metrics import TIME_TO_TARGET, by_key
from acefl.report.standings import NOT_FOR_CITING, Board
from acefl.report.statistics import places

RECORD = Path(__file__).with_name("natural.json")
PAGE = ROOT / "docs" / "which-method.md"
NOT_RECORDED = "Not recorded yet."
SUBJECT = "ACE"
MEASURES: Mapping[str, str] = {
    "heldout_client_loss": "mean loss over clients",
    "heldout_slow_loss": "mean loss of the slowest fifth",
    "heldout_worst_loss": "loss of the client served worst",
    TIME_TO_TARGET: "time to target",
}


def page(board: Board) -> str:
    """Everything between the marks of the page."""
    parts = [f"*Not for citing: {NOT_FOR_CITING}.*"] if board.quick else []
    couplings = "; ".join(f"*{name}*: {words}" for name, words in board.meaning.items())
    parts += [f"{board.cost}. {couplings}.", "## In short", _in_short(board), "## Who leads", _who_leads_means(board)]
    parts += [f"### By {words}\n\n{_leaders(board, measure)}" for measure, words in MEASURES.items()]
    parts += ["### How often", _how_often(board)]
    parts += [f"## When {SUBJECT} is not the answer", _not_the_answer(board)]
    parts += ["## What federation costs", _costs(board)]
    parts += ["## Every task", *(_task(board, task) for task in board.tasks)]
    return "\n\n".join(parts)


def _in_short(board: Board) -> str:
    """By coupling and measure: who leads on most tasks, and the subject beside them."""
    lines = []
    for coupling in board.scenarios:
        for measure, words in MEASURES.items():
            counts = {
                method: sum(method in _leads(board, task, coupling, measure) for task in board.tasks)
                for method in board.methods
            }
            most = max(counts.values())
            first = [method for method, count in counts.items() if count == most]
            own = "" if SUBJECT in first else f"; {SUBJECT} on {counts[SUBJECT]}"
            lines.append(f"- *{coupling}*, {words}: {', '.join(first)} on {most} of {len(board.tasks)} tasks{own}.")
    said = "Who leads on most tasks, which on a board of few tasks is a hint and no more:"
    return "\n".join([said, "", *lines])


def _who_leads_means(board: Board) -> str:
    return (
        "Named is who leads: shown to be better than another method and worse than none on "
        f"{len(board.content['seeds'])} seeds, and better than the starting model. The lowest mean stands first. "
        "Several names mean that the seeds do not tell them apart; take the simplest. All scores are on what clients "
        "hold out."
    )


def _leads(board: Board, task: str, coupling: str, measure: str) -> list[str]:
    if measure == TIME_TO_TARGET:
        return [one.method for one in board.times(task, coupling) if one.leads]
    return [one.method for one in board.column(task, coupling, measure) if one.leads]


def _leaders(board: Board, measure: str) -> str:
    rows = [
        [task, *(", ".join(_leads(board, task, name, measure)) or "nobody is told apart" for name in board.scenarios)]
        for task in board.tasks
    ]
    return _table(["task", *board.scenarios], rows)


def _how_often(board: Board) -> str:
    cells = [(task, name) for task in board.tasks for name in board.scenarios]
    counts = {
        method: [sum(method in _leads(board, *cell, measure) for cell in cells) for measure in MEASURES]
        for method in board.methods
    }
    ordered = sorted(counts.items(), key=lambda entry: [-count for count in entry[1]])
    rows = [[method, *map(str, own)] for method, own in ordered]
    said = f"Of the {len(cells)} combinations of a task and a coupling, each method leads in so many:"
    return f"{said}\n\n{_table(['method', *MEASURES.values()], rows)}"


def is_behind(board: Board, task: str, coupling: str, measure: str, method: str = SUBJECT) -> bool:
    """Whether the method is shown to be worse than another, or failed on a seed where another did on none."""
    scores = board.scores(task, coupling, measure)
    somebody = any(all(map(math.isfinite, own)) for own in scores.values())
    return somebody and method in scores and places(scores)[method].behind


def _not_the_answer(board: Board) -> str:
    """Cases by rule, with who is best there."""
    cases = {
        (task, name): [measure for measure in MEASURES if is_behind(board, task, name, measure)]
        for task in board.tasks
        for name in board.scenarios
    }
    said = []
    for measure, words in MEASURES.items():
        behind = [case for case, measures in cases.items() if measure in measures]
        each = ", ".join(f"{sum(name == own for _, own in behind)} {name}" for name in board.scenarios)
        said.append(f"- By {words}: in {len(behind)} of {len(cases)} combinations ({each}).")
    rows = [
        [task, name, *(_beside(board, task, name, measure) if measure in found else "" for measure in MEASURES)]
        for (task, name), found in cases.items()
        if found
    ]
    head = (
        f"Where {SUBJECT} is shown to be worse than another method, or diverged or did not reach the target on a seed "
        "while another method was good on all:"
    )
    table = _table(["task", "coupling", *MEASURES.values()], rows) if rows else "There is no such case on this board."
    below = f"Each cell: the best method there, and {SUBJECT}. Empty: {SUBJECT} is not shown to be worse."
    return "\n\n".join([head, "\n".join(said), table, *([below] if rows else [])])


def _beside(board: Board, task: str, coupling: str, measure: str) -> str:
    """The best of a cell, and the subject."""
    if measure == TIME_TO_TARGET:
        times = board.times(task, coupling)
        own = next(one for one in times if one.method == SUBJECT)
        return f"{times[0].method} {times[0].written()}; {own.written()}"
    metric = by_key(measure)
    means = {one.method: one.mean for one in board.column(task, coupling, measure)}
    best = min((method for method in means if math.isfinite(means[method])), key=lambda method: means[method])
    own_mean = metric.write(means[SUBJECT]) if math.isfinite(means[SUBJECT]) else "diverged"
    return f"{best} {metric.write(means[best])}; {own_mean}"


def _costs(board: Board) -> str:
    """How much of the way to the centralised model the best method goes, and the subject."""
    rows, metric = [], by_key("heldout_client_loss")
    for task in board.tasks:
        known = board.reference(task)
        if not known:
            continue
        start, end = float(known["start"] or 0.0), float(known["centralised"] or 0.0)
        cells = []
        for name in board.scenarios:
            found = {one.method: one.mean for one in board.column(task, name, metric.key) if math.isfinite(one.mean)}
            shares = {method: f"{(start - mean) / (start - end):.0%}" for method, mean in found.items()}
            best = min(found, key=lambda method: found[method], default=None)
            own = shares.get(SUBJECT, "diverged")
            cells.append(
                "all diverged" if best is None else f"{best} {metric.write(found[best])}: {shares[best]}, {own}"
            )
        rows.append([task, metric.write(start), metric.write(end), *cells])
    said = (
        "Mean held-out loss over clients of the starting model, of the same model trained with everybody's data in one "
        f"place, and of the best method in each coupling. The shares are how far it, and then {SUBJECT}, went from the "
        "first to the second; above 100 % is possible, since what is held out was not trained on."
    )
    return f"{said}\n\n{_table(['task', 'start', 'centralised', *board.scenarios], rows)}"


def _task(board: Board, task: str) -> str:
    key = board.shown(task)
    parts = [f"### {task}", f"{by_key(key).heading}:", board.markdown(task)]
    if board.reference(task):
        parts += [f"{board.target_words(task)}.", board.times_markdown(task)]
    spent = statistics.fmean(row["seconds"] for row in board.content["rows"] if row["task"] == task)
    return "\n\n".join([*parts, f"A cell of this task took {spent:.0f} core-seconds on average."])


def _table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def text() -> str:
    """The whole page, as the record has it."""
    content = page(Board(read_json(RECORD))) if RECORD.exists() else NOT_RECORDED
    return filled(PAGE.read_text(encoding="utf-8"), "natural", content)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directory", nargs="?", type=Path)
    directory = options.parse_args().directory
    if directory is not None:
        record(directory, RECORD)
    PAGE.write_text(text(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
