"""A sweep as a page: heat maps where two settings vary, curves with error bars along each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from acefl.core.errors import require
from acefl.core.files import read_json
from acefl.report import comparison, metrics, page, style
from acefl.report.drawing import VIRIDIS, Figure, Panel, heatmap, line, numbers
from acefl.report.metrics import Metric
from acefl.report.page import Cell, Table
from acefl.report.statistics import leaders, why_bold
from acefl.runs.record import settings_name

Row = dict[str, Any]  # of a table: the varied settings, and "mean" and "std" of a metric over seeds
_SEED = "seed"
_CONDITIONS = ("task.", "scenario.", "stop.")  # under other data, clients or budgets a better score is no better method


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
            rows.append({**varied, **summary["final"], **_time_to_target(summary), **counts, "cell": cell})
    return pd.DataFrame(rows)


def _time_to_target(summary: Row) -> Row:
    """When a run reached its target, where it had one; NaN if it did not."""
    if "target" not in summary:
        return {}
    reached = summary["target"]["reached"]
    return {metrics.TIME_TO_TARGET: math.nan if reached is None else reached["time"]}


def _shown(directory: Path, note: Row, table: pd.DataFrame) -> list[Metric]:
    """What the page is about first: what it was told to go by, then the time to a target."""
    better = read_json(directory / "cells" / str(table["cell"].iloc[0]) / "config.json").get("better") or {}
    found = [metric for metric in metrics.known(table, better) if table[metric.key].notna().any()]
    if metrics.TIME_TO_TARGET in table:
        found.insert(0, metrics.time_to_target("the target"))
    chosen = metrics.by_key(note["by"], better) if note.get("by") in table else None
    return found if chosen is None else [chosen, *(metric for metric in found if metric.key != chosen.key)]


def render(directory: Path) -> str:
    """The page of a sweep directory."""
    note, table = read_json(directory / "sweep.json"), results(directory)
    require(not table.empty, f"{directory} has no finished cell yet")
    shown = _shown(directory, note, table)
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


def grouped(table: pd.DataFrame, by: list[str], metric: Metric) -> list[Row]:
    """Mean and standard deviation over seeds of one metric for every combination of the varied settings."""
    return [dict(zip(by, key, strict=True)) | _over_seeds(part, metric) for key, part in _parts(table, by)]


def leading(table: pd.DataFrame, varied: list[str], metric: Metric) -> set[tuple[Any, ...]]:
    """The combinations of varied settings that lead, each among those of the same task, scenario and budget."""
    found: set[tuple[Any, ...]] = set()
    for _, part in _parts(table, _conditions(varied)):
        keys = {str(key): key for key, _ in _parts(part, varied)}
        by_seed = {
            str(key): dict(zip(own.get(_SEED, range(len(own))), own[metric.key].where(~_lost(own)), strict=True))
            for key, own in _parts(part, varied)
        }
        found |= {keys[name] for name in leaders(metric.scores_by_seed(by_seed))}
    return found


def _parts(table: pd.DataFrame, by: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    return [(key, part) for key, part in table.groupby(by, sort=False)] if by else [((), table)]


def _conditions(varied: list[str]) -> list[str]:
    """What varied of task, scenario and budget: methods compare under the same alone."""
    return [axis for axis in varied if axis == "task" or axis.startswith(_CONDITIONS)]


def _lost(part: pd.DataFrame) -> pd.Series:
    return part["diverged"].astype(bool)


def _over_seeds(part: pd.DataFrame, metric: Metric) -> Row:
    """A mean without the seeds that diverged would flatter, so there is none; how many did is said."""
    lost = _lost(part)
    values = part[metric.key].where(~lost)[lost | part[metric.key].notna()]
    mean, std = float(values.mean(skipna=False)), float(values.std(skipna=False))
    return {"mean": mean, "std": std, "diverged": int(lost.sum()), "counted": len(values), "runs": len(part)}


def _written(row: Row, metric: Metric) -> str:
    lost = f" ({row['diverged']} of {row['runs']} diverged)" if row["diverged"] else ""
    some = f" ({row['counted']} of {row['runs']} runs)" if row["counted"] < row["runs"] else ""
    return metric.write(row["mean"], row["std"]) + some + lost


def _sentences(table: pd.DataFrame, varied: list[str], metric: Metric) -> list[str]:
    """Best means are named where all cells share task, scenario and budget; else they do not compare."""
    done = f"{len(table)} cells are done."
    if conditions := _conditions(varied):
        return [f"Compare within the same {_listed(conditions)}: across them, scores mean different things.", done]
    best = _best(grouped(table, varied, metric), metric)
    where = ", ".join(f"{_word(axis)} {best[axis]}" for axis in varied)
    return [f"Best mean {metric.heading}: {_written(best, metric)}" + (f", at {where}." if where else "."), done]


def _best(rows: list[Row], metric: Metric) -> Row:
    """The one with the best mean; a combination that diverged is never it, unless all did."""
    sign = -1.0 if metric.higher_is_better else 1.0
    return min(rows, key=lambda row: (math.isnan(row["mean"]), sign * row["mean"]))


def _why_bold(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> str:
    seeds = int(table[_SEED].nunique()) if _SEED in table else 1
    conditions = _conditions(varied)
    compared = max(len(_parts(part, varied)) for _, part in _parts(table, conditions))
    why = why_bold(compared, seeds, any(leading(table, varied, metric) for metric in shown), of="combination")
    within = f" Compared within the same {_listed(conditions)}." if conditions and compared > 1 else ""
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
        means = _heights([row["mean"] for row in grouped(table, varied, metric)], metric)
        ends = min(means, default=0.0), max(means, default=1.0)
        parts = _parts(table, others)
        panels = [_heat_map(part, across, up, metric, _group_name(others, key), ends) for key, part in parts]
        title = f"{metric.heading} over {_word(across)} and {_word(up)}"
        better = "larger" if metric.higher_is_better else "smaller"
        caption = f"Mean over seeds; one colour scale for all maps. A {better} {metric.heading} is better and brighter"
        caption += (", in orders of magnitude." if metric.log else ".") + _diverged(table)
        figures.append(Figure(_slug(f"map-{metric.key}-{across}-{up}"), title, caption, panels, min(3, len(panels))))
    return figures


def _heat_map(
    part: pd.DataFrame, across: str, up: str, metric: Metric, heading: str, ends: tuple[float, float]
) -> Panel:
    means = pd.DataFrame(grouped(part, [up, across], metric))
    grid = means.pivot_table(index=up, columns=across, values="mean", aggfunc="first", sort=True, dropna=False)
    values = grid.to_numpy(float)
    heights = np.log10(np.where(values > 0, values, np.nan)) if metric.log else values
    colours = VIRIDIS if metric.higher_is_better else VIRIDIS[::-1]
    text = [[metric.write_short(value) for value in row] for row in values]
    trace = heatmap(grid.columns, grid.index, heights, text, ends, colours, values)
    names = {"type": "category"}
    layout = style.layout(_word(across), _word(up), height=320, xaxis=names, yaxis=names)
    return Panel(heading, [trace], layout)


def _curves(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> list[Figure]:
    """For each varied number, the metric along it: a panel per task, scenario and budget, a curve per combination."""
    figures = []
    for axis in (axis for axis in varied if pd.api.types.is_numeric_dtype(table[axis])):
        panels = []
        others = [other for other in _conditions(varied) if other != axis]
        series = [other for other in varied if other not in (axis, *others)]
        looks = _looks_along(table, series)
        for metric, (key, alike) in itertools.product(shown, _parts(table, others)):
            traces = []
            for name, part in _parts(alike, series):
                along = pd.DataFrame(grouped(part, [axis], metric)).sort_values(axis)
                look, bars = looks[name], numbers(along["std"].fillna(0.0))
                more = {"mode": "lines+markers", "marker": {"color": look.colour, "size": 7}, "error": bars}
                label = _group_name(series, name) or metric.heading
                traces.append(line(label, look, along[axis], along["mean"], **more))
            layout = style.layout(_word(axis), metric.axis, height=380) | {"showlegend": len(traces) > 1}
            heading = ", ".join(filter(None, (metric.heading, _group_name(others, key))))
            panels.append(Panel(heading, traces, layout))
        caption = "Mean over seeds; bars: ± one standard deviation." + _diverged(table)
        figures.append(Figure(_slug(f"along-{axis}"), f"Along {_word(axis)}", caption, panels, min(2, len(panels))))
    return figures


def _looks_along(table: pd.DataFrame, series: list[str]) -> dict[tuple[Any, ...], style.Look]:
    """A method keeps its colour; its other settings have dashes, or colours where there is one method."""
    keys = [key for key, _ in _parts(table, series)]
    if "method" not in series:
        return dict(zip(keys, style.looks_of(map(str, keys)).values(), strict=True))
    place, seen = series.index("method"), Counter[str]()
    colours = style.looks_of(dict.fromkeys(str(key[place]) for key in keys))
    looks = {}
    for key in keys:
        method = str(key[place])
        dash = style.DASHES[seen[method] % len(style.DASHES)]
        looks[key] = style.Look(colours[method].colour, dash) if len(series) > 1 else colours[method]
        seen[method] += 1
    return looks


def _heights(means: list[float], metric: Metric) -> list[float]:
    """The finite ones, as colours show them."""
    shown = [math.log10(mean) if metric.log and mean > 0 else mean for mean in means if not metric.log or mean > 0]
    return [height for height in shown if math.isfinite(height)]


def _diverged(table: pd.DataFrame) -> str:
    lost = int(_lost(table).sum())
    return f" {lost} of {len(table)} runs diverged: nothing is drawn where one of them would count." if lost else ""


def _word(axis: str) -> str:
    return axis.rpartition(".")[2].replace("_", " ")


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _group_name(axes: list[str], values: tuple[Any, ...]) -> str:
    """The settings a panel holds fixed: `ACE, spread 10`; a method needs no word before it."""
    return ", ".join(
        f"{value}" if axis == "method" else f"{_word(axis)} {value}" for axis, value in zip(axes, values, strict=True)
    )
