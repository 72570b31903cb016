"""A leaderboard as a page: one table and one map per task."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from acefl.leaderboard import MEANING
from acefl.report import page, provenance, style
from acefl.report.drawing import Figure, Panel, numbers
from acefl.report.metrics import by_key
from acefl.standings import ALSO, NOT_FOR_CITING, Board, written


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page for a leaderboard's directory and return where it is (`DIRECTORY/report.html` by default)."""
    board = Board.read(directory)
    shown = [(task, board.shown(task, key)) for task in board.tasks for key in (board.shown(task), *ALSO.get(task, ()))]
    html = page.assemble(
        title=f"Leaderboard ({NOT_FOR_CITING})" if board.quick else "Leaderboard",
        subtitle=f"{len(board.methods)} methods · {len(board.scenarios)} scenarios · {len(board.tasks)} tasks",
        sentences=[*_sentences(board), f"{board.cost}."],
        table="".join(f"<h3>{escape(_title(task, key))}</h3>{_table(board, task, key)}" for task, key in shown),
        notes=_notes(board),
        legend="",
        figures=[_map(board, task, board.shown(task)) for task in board.tasks],
        provenance=provenance.details(dict(board.content), ("quick", "tasks", "arrivals", "budget", "seeds"))
        + _tuned(board),
    )
    return page.write_whole(html, Path(out) if out is not None else directory / "report.html")


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


def _notes(board: Board) -> str:
    scenarios = "; ".join(f"<b>{escape(name)}</b>: {escape(MEANING.get(name, name))}" for name in board.scenarios)
    return (
        f"Mean and 95 % interval over {len(board.content['seeds'])} seeds; of the gap, geometric mean and factor "
        f"either way. {escape(board.why_bold)} {scenarios}."
    )


def _table(board: Board, task: str, key: str) -> str:
    metric = by_key(key)
    columns = {name: {one.method: one for one in board.column(task, name, key)} for name in board.scenarios}
    head = "".join(f"<th>{escape(name)}</th>" for name in ["method", *board.scenarios, "mean rank"])
    rows = []
    for method, rank in board.ranks(task, key).items():
        cells = [f'<th scope="row">{escape(method)}</th>']
        for name in board.scenarios:
            standing = columns[name].get(method)
            mark = ' class="best"' if standing is not None and standing.leads else ""
            cells.append(f"<td{mark}>{escape(written(standing, metric))}</td>")
        rows.append(f"<tr>{''.join(cells)}<td>{rank:.1f}</td></tr>")
    return f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _map(board: Board, task: str, key: str) -> Figure:
    metric = by_key(key)
    methods = list(board.ranks(task, key))[::-1]
    columns = {name: {one.method: one.mean for one in board.column(task, name, key)} for name in board.scenarios}
    means = [[columns[name].get(method, math.nan) for name in board.scenarios] for method in methods]
    heights = [[math.log10(value) if value > 0 else math.nan for value in row] if metric.log else row for row in means]
    trace = {
        "type": "heatmap",
        "x": board.scenarios,
        "y": [escape(method) for method in methods],
        "z": [numbers(row) for row in heights],
        "text": [[metric.write_short(value) for value in row] for row in means],
        "texttemplate": "%{text}",
        "colorscale": "Viridis",
        "reversescale": not metric.higher_is_better,
        "showscale": False,
    }
    layout = style.layout(
        "scenario", "", height=120 + 26 * len(methods), xaxis={"type": "category"}, yaxis={"type": "category"}
    )
    caption = "Brighter is better" + (", in orders of magnitude." if metric.log else ".")
    return Figure(f"map-{task}", _title(task, key), caption, [Panel("", [trace], layout)])


def _tuned(board: Board) -> str:
    """Every cell's settings: what somebody who wants to use one needs."""
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in ("task", "scenario", "method", "lr", "trials")) + "</tr>"
    rows = "".join(
        f"<tr><td>{escape(row['task'])}</td><td>{escape(row['scenario'])}</td><td>{escape(row['tuned'])}</td>"
        f"<td>{row['lr']:.4g}</td><td>{row['tuning']['trials']}</td></tr>"
        for row in board.content["rows"]
    )
    return f'<div class="wide"><table class="settings"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
