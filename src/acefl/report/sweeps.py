"""A sweep as a page: heat maps where two settings vary, curves with error bars along each."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd

from acefl.core.errors import require
from acefl.core.files import read_json
from acefl.report import comparison, metrics, page, style
from acefl.report.drawing import Figure, Panel, heatmap, line, numbers
from acefl.report.metrics import Metric
from acefl.report.page import Cell, Table
from acefl.report.statistics import leaders, same_seed, why_bold
from acefl.runs.record import settings_name

_SEED = "seed"
_SETTING = ("task.", "scenario.", "stop.")  # other data, clients or budgets: a better score there is no better method


def results(directory: Path) -> pd.DataFrame:
    """One row per finished cell: what varied, the final metrics, steps, arrivals, time."""
    note = read_json(directory / "sweep.json")
    rows = []
    for values in itertools.product(*note["axes"].values()):
        varied = dict(zip(note["axes"], values, strict=True))
        cell = settings_name({**note["fixed"], **varied})
        path = directory / "cells" / cell / "summary.json"
        if path.exists():
            summary = read_json(path)
            counts = {name: summary[name] for name in ("steps", "arrivals", "time", "wall_seconds", "diverged")}
            rows.append({**varied, **summary["final"], **counts, "cell": cell})
    return pd.DataFrame(rows)


def render(directory: Path) -> str:
    """The page of a sweep directory."""
    note, table = read_json(directory / "sweep.json"), results(directory)
    require(not table.empty, f"{directory} has no finished cell yet")
    shown = [metric for metric in metrics.EVERY if metric.key in table and table[metric.key].notna().any()]
    several = {axis: len(values) for axis, values in note["axes"].items() if len(values) > 1}
    varied = [axis for axis in several if axis != _SEED]
    return page.render(
        "sweep",
        title="A sweep",
        subtitle=" × ".join(f"{_word(axis)} ({count})" for axis, count in several.items()) or "one cell",
        sentences=_sentences(table, varied, shown[0]),
        tables=[_table(table, varied, shown)],
        why_bold=_why_bold(table, varied, shown),
        figures=[*_heat_maps(table, varied, shown[:2]), *_curves(table, varied, shown[:2])],
        made={
            "Held fixed": comparison.settings(note["fixed"]) or "nothing",
            "Cells done": str(len(table)),
            "Work in all": f"{table['wall_seconds'].sum():,.0f} s of simulation",
            "Machine": comparison.settings(note.get("machine", {})),
        },
    )


Row = dict[str, Any]  # the varied settings, and "mean" and "std" of a metric over seeds


def grouped(table: pd.DataFrame, by: list[str], metric: Metric) -> list[Row]:
    """Mean and standard deviation over seeds of one metric for every combination of the varied settings."""
    return [dict(zip(by, key, strict=True)) | _over_seeds(part, metric) for key, part in _parts(table, by)]


def leading(table: pd.DataFrame, varied: list[str], metric: Metric) -> set[tuple[Any, ...]]:
    """The combinations of varied settings that lead, each among those of the same task, scenario and budget."""
    found: set[tuple[Any, ...]] = set()
    for _, part in _parts(table, _around(varied)):
        by_seed = {
            key: dict(zip(own.get(_SEED, range(len(own))), own[metric.key].where(~_lost(own)), strict=True))
            for key, own in _parts(part, varied)
        }
        names = {str(key): key for key in by_seed}
        rows = same_seed(*by_seed.values())
        scores = {name: metric.scores(row[place] for row in rows) for place, name in enumerate(names)}
        found |= {names[name] for name in leaders(scores)}
    return found


def _parts(table: pd.DataFrame, by: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    return [(key, part) for key, part in table.groupby(by, sort=False)] if by else [((), table)]


def _around(varied: list[str]) -> list[str]:
    return [axis for axis in varied if axis == "task" or axis.startswith(_SETTING)]


def _lost(part: pd.DataFrame) -> pd.Series:
    return part["diverged"].astype(bool)


def _over_seeds(part: pd.DataFrame, metric: Metric) -> Row:
    """A mean without the seeds that diverged would flatter, so there is none; how many did is said."""
    lost = _lost(part)
    values = part[metric.key].where(~lost)[lost | part[metric.key].notna()]
    mean, std = float(values.mean(skipna=False)), float(values.std(skipna=False))
    return {"mean": mean, "std": std, "diverged": int(lost.sum()), "runs": len(part)}


def _written(row: Row, metric: Metric) -> str:
    lost = f" ({row['diverged']} of {row['runs']} diverged)" if row["diverged"] else ""
    return metric.write(row["mean"], row["std"]) + lost


def _sentences(table: pd.DataFrame, varied: list[str], metric: Metric) -> list[str]:
    """Best means are named where all cells share task, scenario and budget; else they do not compare."""
    done = f"{len(table)} cells are done."
    if _around(varied):
        return [f"Compare within the same {_listed(_around(varied))}: across them scores mean different things.", done]
    rows = grouped(table, varied, metric)
    best = rows[_best(rows, metric)]
    where = ", ".join(f"{_word(axis)} {best[axis]}" for axis in varied)
    return [f"Best mean {metric.heading}: {_written(best, metric)}" + (f", at {where}." if where else "."), done]


def _best(rows: list[Row], metric: Metric) -> int:
    """The place of the best mean; a combination that diverged is never it, unless all did."""
    sign = -1.0 if metric.higher_is_better else 1.0
    return min(range(len(rows)), key=lambda i: (math.isnan(rows[i]["mean"]), sign * rows[i]["mean"]))


def _why_bold(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> str:
    seeds = int(table[_SEED].nunique()) if _SEED in table else 1
    compared = max(len(_parts(part, varied)) for _, part in _parts(table, _around(varied)))
    why = why_bold(compared, seeds, any(leading(table, varied, metric) for metric in shown), of="combination")
    within = f" Compared within the same {_listed(_around(varied))}." if _around(varied) and compared > 1 else ""
    return f"{why}{within}"


def _listed(axes: list[str]) -> str:
    return " and ".join(map(_word, axes))


def _table(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> Table:
    columns = [(metric, grouped(table, varied, metric), leading(table, varied, metric)) for metric in shown]
    rows = []
    for place, first in enumerate(columns[0][1]):
        key = tuple(first[axis] for axis in varied)
        cells = [Cell(str(value)) for value in key]
        for metric, of_metric, bold in columns:
            cells.append(Cell(_written(of_metric[place], metric), key in bold))
        rows.append(cells)
    return Table([*map(_word, varied), *(metric.heading for metric in shown)], rows, named=len(varied))


def _heat_maps(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> list[Figure]:
    """For each pair of varied numbers, a map per remaining combination (per method, say)."""
    figures = []
    numeric = [axis for axis in varied if pd.api.types.is_numeric_dtype(table[axis])]
    for metric, (across, up) in itertools.product(shown, itertools.combinations(numeric, 2)):
        others = [axis for axis in varied if axis not in (across, up)]
        groups = table.groupby(others, sort=False) if others else [("", table)]
        low, high = float(table[metric.key].min()), float(table[metric.key].max())
        panels = [_heat_map(part, across, up, metric, _group_name(others, name), (low, high)) for name, part in groups]
        title = f"{metric.heading} over {_word(across)} and {_word(up)}"
        caption = "Mean over seeds; one colour scale for all maps. Brighter is better." + _within(varied)
        caption += _diverged(table)
        figures.append(Figure(_slug(f"map-{metric.key}-{across}-{up}"), title, caption, panels, min(3, len(panels))))
    return figures


def _heat_map(
    part: pd.DataFrame, across: str, up: str, metric: Metric, heading: str, ends: tuple[float, float]
) -> Panel:
    means = pd.DataFrame(grouped(part, [up, across], metric))
    grid = means.pivot_table(index=up, columns=across, values="mean", aggfunc="first", sort=True, dropna=False)
    values = grid.to_numpy(float)
    text = [[metric.write_short(value) for value in row] for row in values]
    colours = {"colorscale": "Viridis", "reversescale": not metric.higher_is_better, "zmin": ends[0], "zmax": ends[1]}
    trace = heatmap(grid.columns, grid.index, values, text, **colours)
    names = {"type": "category"}
    layout = style.layout(_word(across), _word(up), height=320, xaxis=names, yaxis=names)
    return Panel(heading, [trace], layout)


def _curves(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> list[Figure]:
    """For each varied number, the metric along it: a curve per method, averaged over everything else."""
    figures = []
    has_method = "method" in varied
    labels = [str(name) for name in table["method"].unique()] if has_method else ["all"]
    looks = style.looks_of(labels)
    for axis in (axis for axis in varied if pd.api.types.is_numeric_dtype(table[axis])):
        panels = []
        for metric in shown:
            traces = []
            for name in labels:
                part = table[table["method"] == name] if has_method else table
                along = pd.DataFrame(grouped(part, [axis], metric)).sort_values(axis)
                bars = {"type": "data", "array": numbers(along["std"].fillna(0.0)), "thickness": 1.4}
                traces.append(line(name, looks[name], along[axis], along["mean"], mode="lines+markers", error_y=bars))
            layout = style.layout(_word(axis), metric.axis, height=380) | {"showlegend": len(labels) > 1}
            panels.append(Panel(metric.heading, traces, layout))
        caption = "Mean over seeds and all other settings; bars: ± one standard deviation over them."
        caption += _within(varied) + _diverged(table)
        figures.append(Figure(_slug(f"along-{axis}"), f"Along {_word(axis)}", caption, panels, min(2, len(panels))))
    return figures


def _within(varied: list[str]) -> str:
    """Where tasks, scenarios or budgets differ, no level is better than another's."""
    around = _around(varied)
    return (
        f" Compare within the same {_listed(around)} only: across them scores mean different things." if around else ""
    )


def _diverged(table: pd.DataFrame) -> str:
    lost = int(_lost(table).sum())
    return f" {lost} of {len(table)} runs diverged: nothing is drawn where one of them would count." if lost else ""


def _word(axis: str) -> str:
    return axis.rpartition(".")[2].replace("_", " ")


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _group_name(axes: list[str], values: Any) -> str:
    """The settings a panel holds fixed: `ACE, spread 10`; a method needs no word before it."""
    own = values if isinstance(values, tuple) else (values,)
    return ", ".join(
        f"{value}" if axis == "method" else f"{_word(axis)} {value}" for axis, value in zip(axes, own, strict=False)
    )
