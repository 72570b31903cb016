"""Reading a leaderboard: who is ahead where, by how much, and who cannot be told apart from the first.

Seeds are paired: every method sees the same data split, schedule and minibatches on a seed, so two methods are compared
by their differences seed by seed, which vary far less than the scores do.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from acefl.core.files import read_json
from acefl.errors import require
from acefl.report.metrics import Metric, by_key

SHOWN: Mapping[str, str] = {"digits": "client_loss", "quadratic": "gap"}  # of a task: what its methods were tuned by
RECORDED = "leaderboard.json"  # the board this release was measured by, within the package


@dataclass(frozen=True)
class Standing:
    """One method in one column of the board."""

    method: str
    row: Mapping[str, Any]
    mean: float  # the geometric mean of a metric that spans orders of magnitude
    half: float  # of the 95 % interval of the mean; of such a metric, the factor either way
    first: bool  # the best mean, or not to be told apart from it: the paired 95 % interval holds zero


class Board:
    """A recorded leaderboard."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.tasks: list[str] = list(content["tasks"])
        self.scenarios: list[str] = list(content["scenarios"])
        self._cells = {(row["task"], row["scenario"], row["method"]): row for row in content["rows"]}
        require(bool(self._cells), "the leaderboard has no cell yet")

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Board:
        return cls(read_json(Path(directory) / RECORDED))

    @classmethod
    def recorded(cls) -> Board:
        """The one that comes with acefl."""
        with resources.as_file(resources.files("acefl").joinpath(RECORDED)) as path:
            return cls(read_json(path))

    @property
    def meaning(self) -> dict[str, str]:
        """The scenarios in words, where they were recorded."""
        words = self.content.get("meaning", {})
        return {name: words[name] for name in self.scenarios if name in words}

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for _, _, method in self._cells))

    def cell(self, task: str, scenario: str, method: str) -> Mapping[str, Any] | None:
        return self._cells.get((task, scenario, method))

    def column(self, task: str, scenario: str, key: str, among: Sequence[str] | None = None) -> list[Standing]:
        """Everybody in one scenario, or some, the best of them first; who diverged on a seed comes last."""
        metric = by_key(key)
        scored = {
            method: (row, scores_of(row["finals"][key], metric))
            for method in (self.methods if among is None else among)
            if (row := self.cell(task, scenario, method)) is not None and key in row["finals"]
        }
        order = sorted(scored, key=lambda method: statistics.fmean(scored[method][1]))
        standings = []
        for method in order:
            row, scores = scored[method]
            ahead = scored[order[0]][1]
            apart = [own - best for own, best in zip(scores, ahead, strict=True)]
            known = all(map(math.isfinite, apart))
            first = known and statistics.fmean(apart) <= half_width(apart)
            standings.append(Standing(method, row, *_summary(scores, metric), first))
        return standings

    def ranks(self, task: str, key: str) -> dict[str, float]:
        """Every method's mean rank over the scenarios, the best first."""
        places: dict[str, list[int]] = {}
        for scenario in self.scenarios:
            for place, standing in enumerate(self.column(task, scenario, key), start=1):
                places.setdefault(standing.method, []).append(place)
        means = {method: statistics.fmean(own) for method, own in places.items()}
        return dict(sorted(means.items(), key=lambda entry: entry[1]))

    def markdown(self, task: str, key: str | None = None) -> str:
        """One task as a table: a method per row, by mean rank; a scenario per column; first and its equals in bold."""
        key = key or SHOWN[task]
        metric, ranks = by_key(key), self.ranks(task, key)
        columns = {scenario: {s.method: s for s in self.column(task, scenario, key)} for scenario in self.scenarios}
        lines = [
            "| method | " + " | ".join(self.scenarios) + " | mean rank |",
            "|---|" + "--:|" * (len(self.scenarios) + 1),
        ]
        for method, rank in ranks.items():
            cells = [written(columns[scenario].get(method), metric, bold="**") for scenario in self.scenarios]
            lines.append(f"| {method} | " + " | ".join(cells) + f" | {rank:.1f} |")
        return "\n".join(lines)

    @property
    def cost(self) -> str:
        """What it took, in a sentence."""
        content, machine = self.content, self.content["machine"]
        cells, trials = len(self._cells), [row["tuning"]["arrivals"] for row in self.content["rows"]]
        return (
            f"{len(self.methods)} methods, {len(self.scenarios)} scenarios, {len(self.tasks)} tasks: {cells} cells of "
            f"{content['arrivals']:,} arrivals on each of {len(content['seeds'])} seeds, each tuned with a budget of "
            f"{content['budget']:g} whole runs (at most {max(trials):,} arrivals), took "
            f"{content['took'] / 60:.1f} minutes ({content['core_seconds'] / 60:.0f} core-minutes) on "
            f"{machine['cores']} cores of {machine['cpu']}"
        )


def written(standing: Standing | None, metric: Metric, bold: str = "") -> str:
    """A cell as text."""
    if standing is None:
        return ""
    if not math.isfinite(standing.mean):
        return "diverged"
    text = (
        f"{metric.write_short(standing.mean)} ×÷ {standing.half:.1f}"
        if metric.log
        else (metric.write(standing.mean, standing.half, digits=3))
    )
    idle = sum(steps == 0 for steps in standing.row.get("steps", ()))
    text += f" ({idle} without a step)" * bool(idle)
    return f"{bold}{text}{bold}" if standing.first else text


def scores_of(values: Sequence[float | None], metric: Metric) -> list[float]:
    """Smaller is better; in logs where the metric spans orders of magnitude."""
    known = [math.nan if value is None else float(value) for value in values]
    if any(map(math.isnan, known)):
        return [math.inf] * len(known)
    if metric.log:
        return [math.log(max(value, 1e-300)) for value in known]
    return [-value if metric.higher_is_better else value for value in known]


def _summary(scores: Sequence[float], metric: Metric) -> tuple[float, float]:
    if not all(map(math.isfinite, scores)):
        return math.nan, math.nan
    mean, half = statistics.fmean(scores), half_width(scores)
    if metric.log:
        return math.exp(mean), math.exp(half)
    return (0.0 - mean if metric.higher_is_better else mean), half


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t."""
    if len(values) < 2:
        return math.inf
    return _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


@cache
def _quantile(degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))
