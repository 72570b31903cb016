"""A leaderboard as a page: one table and one map per task."""

from __future__ import annotations

import math
from pathlib import Path

from acefl.report import comparison, page, style
from acefl.report.drawing import VIRIDIS, Figure, Panel, heatmap
from acefl.report.metrics import by_key
from acefl.report.page import Cell, Table
from acefl.report.standings import NOT_FOR_CITING, Board, written


def render(directory: Path) -> str:
    """The page of a leaderboard's directory."""
    board = Board.read(directory)
    keys = {task: (board.shown(task), *board.besides(task)) for task in board.tasks}
    shown = [(task, board.shown(task, key)) for task, own in keys.items() for key in own]
    return page.render(
        "leaderboard",
        title=f"Leaderboard ({NOT_FOR_CITING})" if board.quick else "Leaderboard",
        subtitle=f"{len(board.methods)} methods · {len(board.scenarios)} scenarios · {len(board.tasks)} tasks",
        sentences=[*_sentences(board), f"{board.cost}."],
        tables=[
            *(_table(board, task, key) for task, key in shown),
            *(_times(board, task) for task in board.tasks if board.reference(task)),
        ],
        figures=[_map(board, task, board.shown(task)) for task in board.tasks],
        seeds=len(board.content["seeds"]),
        why_bold=board.why_bold,
        scenarios=board.meaning,
        made=comparison.facts(
            {**board.content, "quick": board.quick}, ("quick", "tasks", "arrivals", "budget", "seeds")
        ),
        tuned=_tuned(board),
    )


def _title(task: str, key: str) -> str:
    return f"{task}: {by_key(key).heading}"


def _sentences(board: Board) -> list[str]:
    sentences = [f"This board is {NOT_FOR_CITING}."] if board.quick else []
    for task in board.tasks:
        key = board.shown(task)
        ranks = list(board.ranks(task, key).items())[:3]
        named = ", ".join(f"{method} ({rank:.1f})" for method, rank in ranks)
        sentences.append(f"Lowest mean ranks on {task}, by {by_key(key).heading}: {named}; ranks are not tested.")
    return sentences


def _table(board: Board, task: str, key: str) -> Table:
    metric = by_key(key)
    columns = {name: {one.method: one for one in board.column(task, name, key)} for name in board.scenarios}
    rows = []
    for method, rank in board.ranks(task, key).items():
        cells = [Cell(method)]
        for name in board.scenarios:
            standing = columns[name].get(method)
            cells.append(Cell(written(standing, metric), standing is not None and standing.leads))
        rows.append([*cells, Cell(f"{rank:.1f}")])
    return Table(["method", *board.scenarios, "mean rank"], rows, _title(task, key))


def _times(board: Board, task: str) -> Table:
    columns = {name: {one.method: one for one in board.times(task, name)} for name in board.scenarios}
    rows = []
    for method in board.ranks(task, board.shown(task)):
        found = [columns[name].get(method) for name in board.scenarios]
        rows.append([Cell(method), *(Cell(one.written(), one.leads) if one else Cell("") for one in found)])
    return Table(["method", *board.scenarios], rows, f"{task}: time to target. {board.target_words(task)}")


def _map(board: Board, task: str, key: str) -> Figure:
    metric = by_key(key)
    methods = list(board.ranks(task, key))[::-1]
    columns = {name: {one.method: one.mean for one in board.column(task, name, key)} for name in board.scenarios}
    means = [[columns[name].get(method, math.nan) for name in board.scenarios] for method in methods]
    heights = [[math.log10(value) if value > 0 else math.nan for value in row] if metric.log else row for row in means]
    text = [[metric.write_short(value) for value in row] for row in means]
    colours = VIRIDIS if metric.higher_is_better else VIRIDIS[::-1]
    names = {"type": "category"}
    layout = style.layout("scenario", "", height=120 + 26 * len(methods), xaxis=names, yaxis=names)
    caption = "Brighter is better" + (", in orders of magnitude." if metric.log else ".")
    panel = Panel("", [heatmap(board.scenarios, methods, heights, text, colors=colours, values=means)], layout)
    return Figure(f"map-{task}", _title(task, key), caption, [panel])


def _tuned(board: Board) -> Table:
    """Every cell's settings: what somebody who wants to use one needs."""
    rows = [
        [row["task"], row["scenario"], row["tuned"], f"{row['lr']:.4g}", str(row["tuning"]["trials"])]
        for row in board.content["rows"]
    ]
    headings = ["task", "scenario", "method", "lr", "trials"]
    return Table(headings, [[Cell(text) for text in row] for row in rows], named=0, kind="settings")
