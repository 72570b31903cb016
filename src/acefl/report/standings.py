"""Reading a leaderboard: where every method stands, and what the seeds show of it (see `acefl.report.statistics`)."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from acefl.core.errors import require
from acefl.core.files import read_json
from acefl.report.metrics import TIME_TO_TARGET, Metric, by_key, held_out, time_to_target
from acefl.report.statistics import half_width, leaders, why_bold

TUNED_BY: Mapping[str, str] = {"digits": "client_loss", "quadratic": "gap"}  # the objective of each task
ALSO: Mapping[str, tuple[str, ...]] = {"digits": ("slow_accuracy", "accuracy")}  # shown on the page besides
ALSO_OF_OTHERS = ("heldout_slow_loss", "heldout_worst_loss", "heldout_slow_accuracy")  # of tasks that are not in ALSO
NOT_FOR_CITING = "quick: too short to mean anything, not for citing"
RECORDED = "leaderboard.json"  # the board this release was measured by, within the package
_LOG_TIME = replace(time_to_target("the target"), log=True)


@dataclass(frozen=True)
class Standing:
    """One method in one column of the board."""

    method: str
    row: Mapping[str, Any]
    mean: float  # the geometric mean of a metric that spans orders of magnitude
    half: float  # of the 95 % interval of the mean; of such a metric, the factor either way
    leads: bool  # shown to be better than another method and worse than none, and better than the starting model


@dataclass(frozen=True)
class Timing:
    """When one method reached a task's target in one scenario."""

    method: str
    median: float  # virtual time, over all seeds, one that did not get there counting as never; infinite: never
    reached: int  # seeds that got there
    seeds: int
    leads: bool  # shown to be there sooner than another method and later than none

    def written(self, bold: str = "") -> str:
        """A cell as text."""
        text = f"{self.median:,.3g}" if math.isfinite(self.median) else "not reached"
        if 0 < self.reached < self.seeds:
            text += f" ({self.reached} of {self.seeds} seeds)"
        return f"{bold}{text}{bold}" if self.leads else text


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
        with resources.as_file(resources.files("acefl.report").joinpath(RECORDED)) as path:
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

    @property
    def quick(self) -> bool:
        """Whether it was made to see what a board looks like."""
        return bool(self.content.get("quick", False))

    def shown(self, task: str, key: str | None = None) -> str:
        """The metric a task is shown by: what methods were tuned by (or `key`), on held-out data where recorded."""
        rows = [row for row in self.content["rows"] if row["task"] == task]
        key = key or TUNED_BY.get(task) or str(rows[0]["objective"])
        better = held_out(key)
        return better if better is not None and rows and all(better in row["finals"] for row in rows) else key

    def besides(self, task: str) -> tuple[str, ...]:
        """What the page shows of a task besides: of one that is not usual on boards, the slow and the worst served."""
        if task in TUNED_BY:
            return ALSO.get(task, ())
        rows = [row for row in self.content["rows"] if row["task"] == task]
        return tuple(key for key in ALSO_OF_OTHERS if rows and all(key in row["finals"] for row in rows))

    def scores(self, task: str, scenario: str, key: str) -> dict[str, list[float]]:
        """What methods are compared by, one score per seed, smaller being better; infinite: it diverged.

        Of `time_to_target` the log of the virtual time; infinite: it did not get there.
        """
        found = {name: row for name in self.methods if (row := self.cell(task, scenario, name)) is not None}
        if key == TIME_TO_TARGET:
            return {name: _LOG_TIME.scores(row["reached"]["time"]) for name, row in found.items() if "reached" in row}
        metric = by_key(key)
        return {name: metric.scores(row["finals"][key]) for name, row in found.items() if key in row["finals"]}

    def column(self, task: str, scenario: str, key: str) -> list[Standing]:
        """Everybody in one scenario, the best mean first; who diverged on a seed comes last."""
        metric, scores = by_key(key), self.scores(task, scenario, key)
        rows = {method: self._cells[task, scenario, method] for method in scores}
        starts = {method: metric.scores(row.get("starts", {}).get(key, ())) for method, row in rows.items()}
        first = leaders(scores, starts)
        order = sorted(scores, key=lambda method: statistics.fmean(scores[method]))
        return [Standing(m, rows[m], *_summary(scores[m], metric), m in first) for m in order]

    def ranks(self, task: str, key: str) -> dict[str, float]:
        """Every method's mean rank over the scenarios, the best first."""
        places: dict[str, list[int]] = {}
        for scenario in self.scenarios:
            for place, standing in enumerate(self.column(task, scenario, key), start=1):
                places.setdefault(standing.method, []).append(place)
        means = {method: statistics.fmean(own) for method, own in places.items()}
        return dict(sorted(means.items(), key=lambda entry: entry[1]))

    def markdown(self, task: str, key: str | None = None) -> str:
        """One task as a table: a method per row, by mean rank; a scenario per column; who leads it in bold."""
        key = key or self.shown(task)
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

    def reference(self, task: str) -> Mapping[str, float | None]:
        """What a task's target is made of: `start`, `centralised` and `target`; empty where it has none."""
        found: Mapping[str, float | None] = self.content.get("references", {}).get(task, {})
        return found if found.get("target") is not None else {}

    def target_words(self, task: str) -> str:
        """A task's target in a sentence."""
        told, known = self.content["target"], self.reference(task)
        metric = by_key(told["metric"])
        return (
            f"Virtual time until the {metric.heading} was at most {known['target']:.4g}, {told['share']:.0%} of the "
            f"way from the starting model ({known['start']:.4g}) to one trained with everybody's data in one place "
            f"({known['centralised']:.4g}): the median over seeds, of which one that did not get there counts as never"
        )

    def times(self, task: str, scenario: str) -> list[Timing]:
        """When everybody reached the target in one scenario, the soonest first."""
        scores = self.scores(task, scenario, TIME_TO_TARGET)
        first, times = leaders(scores), {name: [math.exp(one) for one in own] for name, own in scores.items()}
        timings = [
            Timing(name, statistics.median(own), sum(map(math.isfinite, own)), len(own), name in first)
            for name, own in times.items()
        ]
        return sorted(timings, key=lambda one: (one.median, -one.reached))

    def times_markdown(self, task: str) -> str:
        """One task's times to its target as a table, in the order of the other one."""
        columns = {scenario: {one.method: one for one in self.times(task, scenario)} for scenario in self.scenarios}
        lines = ["| method | " + " | ".join(self.scenarios) + " |", "|---|" + "--:|" * len(self.scenarios)]
        for method in self.ranks(task, self.shown(task)):
            cells = [columns[name][method].written("**") if method in columns[name] else "" for name in self.scenarios]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    @property
    def why_bold(self) -> str:
        """What bold means in its tables."""
        columns = [self.column(task, name, self.shown(task)) for task in self.tasks for name in self.scenarios]
        shown = any(one.leads for column in columns for one in column)
        return why_bold(len(self.methods), len(self.content["seeds"]), shown)

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
    text = metric.write(standing.mean, standing.half)
    if metric.log:
        text = f"{metric.write_short(standing.mean)} ×÷ {standing.half:.1f}"
    if idle := sum(steps == 0 for steps in standing.row.get("steps", ())):
        text += f" ({idle} without a step)"
    return f"{bold}{text}{bold}" if standing.leads else text


def _summary(scores: Sequence[float], metric: Metric) -> tuple[float, float]:
    if not all(map(math.isfinite, scores)):
        return math.nan, math.nan
    mean, half = statistics.fmean(scores), half_width(scores)
    if metric.log:
        return math.exp(mean), math.exp(half)
    return (0.0 - mean if metric.higher_is_better else mean), half
