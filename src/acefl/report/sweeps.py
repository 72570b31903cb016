"""A sweep as a page: heat maps where two settings vary, curves with error bars along each."""

from __future__ import annotations

import itertools
import math
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from acefl.errors import require
from acefl.record import read_json
from acefl.report import metrics, page, style
from acefl.report.drawing import Figure, Panel, numbers
from acefl.report.metrics import Metric
from acefl.report.recorded import Method
from acefl.sweep import results

_SEED = "seed"


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page for a sweep directory and return where it is (`DIRECTORY/report.html` by default)."""
    note = read_json(directory / "sweep.json")
    table = results(directory)
    require(not table.empty, f"{directory} has no finished cell yet")
    shown = [metric for metric in metrics.EVERY if metric.key in table and table[metric.key].notna().any()]
    several = {axis: len(values) for axis, values in note["axes"].items() if len(values) > 1}
    varied = [axis for axis in several if axis != _SEED]
    html = page.assemble(
        title="A sweep",
        subtitle=" × ".join(f"{_word(axis)} ({count})" for axis, count in several.items()) or "one cell",
        sentences=_sentences(table, varied, shown[0]),
        table=_table(table, varied, shown),
        notes="Mean ± standard deviation over seeds; none where a seed diverged. Bold: best in its column.",
        legend="",
        figures=[*_heat_maps(table, varied, shown[:2]), *_curves(table, varied, shown[:2])],
        provenance=_provenance(note, table),
    )
    return page.write_whole(html, Path(out) if out is not None else directory / "report.html")


Row = dict[str, Any]  # the varied settings, and "mean" and "std" of a metric over seeds


def grouped(table: pd.DataFrame, by: list[str], metric: Metric) -> list[Row]:
    """Mean and standard deviation over seeds of one metric for every combination of the varied settings."""
    if not by:
        return [_over_seeds(table, metric)]
    groups = table.groupby(by, sort=False)
    return [dict(zip(by, values, strict=True)) | _over_seeds(part, metric) for values, part in groups]


def _over_seeds(part: pd.DataFrame, metric: Metric) -> Row:
    """A mean without the seeds that diverged would flatter, so there is none; how many did is said."""
    lost = part["diverged"].astype(bool)
    values = part[metric.key].where(~lost)[lost | part[metric.key].notna()]
    mean, std = float(values.mean(skipna=False)), float(values.std(skipna=False))
    return {"mean": mean, "std": std, "diverged": int(lost.sum()), "runs": len(part)}


def _written(row: Row, metric: Metric) -> str:
    lost = f" ({row['diverged']} of {row['runs']} diverged)" if row["diverged"] else ""
    return metric.write(row["mean"], row["std"]) + lost


def _sentences(table: pd.DataFrame, varied: list[str], metric: Metric) -> list[str]:
    rows = grouped(table, varied, metric)
    best = rows[_best(rows, metric)]
    where = ", ".join(f"{_word(axis)} {best[axis]}" for axis in varied)
    value = _written(best, metric)
    return [f"Best {metric.heading}: {value}" + (f", at {where}." if where else "."), f"{len(table)} cells are done."]


def _best(rows: list[Row], metric: Metric) -> int:
    """The place of the best mean; a combination that diverged is never it, unless all did."""
    sign = -1.0 if metric.higher_is_better else 1.0
    return min(range(len(rows)), key=lambda i: (math.isnan(rows[i]["mean"]), sign * rows[i]["mean"]))


def _table(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> str:
    columns = [(metric, grouped(table, varied, metric)) for metric in shown]
    head = "".join(f"<th>{escape(name)}</th>" for name in [*map(_word, varied), *(m.heading for m in shown)])
    lines = []
    for place, first in enumerate(columns[0][1]):
        cells = [f'<th scope="row">{escape(str(first[axis]))}</th>' for axis in varied]
        for metric, rows in columns:
            mark = ' class="best"' if _best(rows, metric) == place else ""
            cells.append(f"<td{mark}>{escape(_written(rows[place], metric))}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


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
        caption = "Mean over seeds; one colour scale for all maps. Brighter is higher." + _diverged(table)
        figures.append(Figure(_slug(f"map-{metric.key}-{across}-{up}"), title, caption, panels, min(3, len(panels))))
    return figures


def _heat_map(
    part: pd.DataFrame, across: str, up: str, metric: Metric, heading: str, ends: tuple[float, float]
) -> Panel:
    means = pd.DataFrame(grouped(part, [up, across], metric))
    grid = means.pivot_table(index=up, columns=across, values="mean", aggfunc="first", sort=True, dropna=False)
    text = [[metric.write_short(value) for value in row] for row in grid.to_numpy()]
    trace = {
        "type": "heatmap",
        "x": [str(value) for value in grid.columns],
        "y": [str(value) for value in grid.index],
        "z": [numbers(row) for row in grid.to_numpy()],
        "text": text,
        "texttemplate": "%{text}",
        "colorscale": "Viridis",
        "zmin": ends[0],
        "zmax": ends[1],
        "showscale": False,
    }
    category = {"type": "category"}
    layout = style.layout(_word(across), _word(up), height=320, xaxis=category, yaxis=category)
    return Panel(heading, [trace], layout)


def _curves(table: pd.DataFrame, varied: list[str], shown: list[Metric]) -> list[Figure]:
    """For each varied number, the metric along it: a curve per method, averaged over everything else."""
    figures = []
    has_method = "method" in varied
    labels = [str(name) for name in table["method"].unique()] if has_method else ["all"]
    looks = style.looks(
        [Method(label=name, method=name.partition("(")[0], rule={}, lr=0.0, tuning=[], runs=[]) for name in labels]
    )
    for axis in (axis for axis in varied if pd.api.types.is_numeric_dtype(table[axis])):
        panels = []
        for metric in shown:
            traces = []
            for name in labels:
                part = table[table["method"] == name] if has_method else table
                along = pd.DataFrame(grouped(part, [axis], metric)).sort_values(axis)
                look = looks[name]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "name": escape(name),
                        "meta": name,
                        "x": numbers(along[axis]),
                        "y": numbers(along["mean"]),
                        "error_y": {"type": "data", "array": numbers(along["std"].fillna(0.0)), "thickness": 1.4},
                        "line": {"color": look.colour, "dash": look.dash, "width": 2.4},
                    }
                )
            layout = style.layout(_word(axis), metric.axis, height=380) | {"showlegend": len(labels) > 1}
            panels.append(Panel(metric.heading, traces, layout))
        caption = "Mean over seeds and all other settings; bars: ± one standard deviation over them."
        caption += _diverged(table)
        figures.append(Figure(_slug(f"along-{axis}"), f"Along {_word(axis)}", caption, panels, min(2, len(panels))))
    return figures


def _diverged(table: pd.DataFrame) -> str:
    lost = int(table["diverged"].astype(bool).sum())
    return f" {lost} of {len(table)} runs diverged: nothing is drawn where one of them would count." if lost else ""


def _provenance(note: dict[str, Any], table: pd.DataFrame) -> str:
    fixed = ", ".join(f"{key} = {value}" for key, value in note["fixed"].items()) or "nothing"
    machine = ", ".join(f"{key}: {value}" for key, value in note.get("machine", {}).items() if value is not None)
    lines = {
        "Held fixed": fixed,
        "Cells done": str(len(table)),
        "Work in all": f"{table['wall_seconds'].sum():,.0f} s of simulation",
        "Machine": machine,
    }
    rows = "".join(f"<tr><th scope='row'>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in lines.items())
    return f"<table>{rows}</table>"


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
