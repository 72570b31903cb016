"""Recorded runs of a recipe: one JSON line each, appended as they finish, and read back as tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acefl.core.errors import require
from acefl.core.files import JsonLines

Record = dict[str, Any]
_ORDER = ("ACE", "ACED", "CA2FL", "FedBuff", "DelayAdaptiveASGD", "ASGD")  # of methods, in every table and legend


class Ledger:
    """A file of finished runs by cell name, in the order they were last recorded in.

    A line that was cut off by a crash is dropped: its run is made again. A run is named by where its data lie, not by
    how much lies there, so runs on another number of samples, where that was recorded, are refused.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lines = path, JsonLines(path)
        self._samples: dict[str, int] = {}  # of the runs that have the same data by their settings
        self.records: dict[str, Record] = {}
        for number, record in self._lines.read():
            known = isinstance(record, dict) and isinstance(record.get("cell"), str)
            require(known, f"{path}, line {number}: not a record of a run of acefl reproduce")
            self._keep(record)

    def add(self, record: Record) -> None:
        if "samples" in record:
            known = self._samples.get(_data(record), record["samples"])
            wrong = f"{self._path} holds runs on {known:,} samples, not {record['samples']:,}; give another folder"
            require(record["samples"] == known, wrong)
        self._keep(self._lines.add(record))

    def _keep(self, record: Record) -> None:
        if "samples" in record:
            self._samples.setdefault(_data(record), record["samples"])
        self.records.pop(record["cell"], None)
        self.records[record["cell"]] = record


class Results:
    """The reported runs of a recipe (not those of a learning-rate search), with what tells them apart as columns.

    Where a later search chose another learning rate for an entry, its runs with the earlier one count no more: the rate
    of an entry is the one recorded last.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        every = list(records)
        runs = [record for record in every if record["kind"] == "run"]
        chosen = {_entry(record): record["settings"].get("lr") for record in runs}
        self.records = [record for record in runs if record["settings"].get("lr") == chosen[_entry(record)]]
        self.trials = [record for record in every if record["kind"] == "trial"]

    def where(self, **labels: Any) -> Results:
        """Those with these labels."""
        return Results(r for r in self.records if all(r["labels"].get(key) == value for key, value in labels.items()))

    def having(self, label: str) -> list[Any]:
        """The values a label takes: methods in their usual order, numbers by size, others as they were recorded."""
        found = list(dict.fromkeys(r["labels"][label] for r in self.records if label in r["labels"]))
        if all(isinstance(value, int | float) for value in found):
            return sorted(found)
        return sorted(found, key=lambda value: _ORDER.index(value) if value in _ORDER else len(_ORDER))

    @property
    def seeds(self) -> int:
        """How many seeds there are of the entry that has fewest."""
        counts = Counter(_entry(record) for record in self.records)
        return min(counts.values(), default=0)

    def balanced(self) -> Results:
        """Only the seeds that every entry has, so that means are over the same ones."""
        by_entry: dict[str, set[int]] = {}
        for record in self.records:
            by_entry.setdefault(_entry(record), set()).add(record["settings"]["seed"])
        common = set.intersection(*by_entry.values()) if by_entry else set()
        return Results(record for record in self.records if record["settings"]["seed"] in common)

    def at_equal_time(self) -> Results:
        """The same runs, judged at the virtual time at which the first of them ended: accuracy, from their curves."""
        ended = [record["history"][-1]["time"] for record in self.records if record["history"]]
        judged = []
        for record in self.records:
            points = [(row["time"], row["accuracy"]) for row in record["history"] if row.get("accuracy") is not None]
            if points:
                times, values = zip(*points, strict=True)
                value = float(np.interp(min(ended), times, values))
                judged.append({**record, "final": {"accuracy": value}})
        return Results(judged)

    def values(self, metric: str, **labels: Any) -> list[float]:
        """A final metric over seeds; a run that diverged counts as NaN, whatever it was judged at before."""
        found = [(r["final"].get(metric), r["diverged"]) for r in self.where(**labels).records]
        return [math.nan if value is None or diverged else float(value) for value, diverged in found]

    def by_seed(self, metric: str, **labels: Any) -> dict[int, float]:
        """A final metric of each seed that has it."""
        found = {r["settings"]["seed"]: r["final"].get(metric) for r in self.where(**labels).records}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def mean(self, metric: str, **labels: Any) -> float | None:
        """The mean over seeds, None where there is no run; of a run that diverged, what it was last judged at."""
        found = [r["final"].get(metric) for r in self.where(**labels).records]
        values = [float(value) for value in found if value is not None]
        return sum(values) / len(values) if values else None

    @property
    def diverged(self) -> int:
        """How many of the runs did."""
        return sum(bool(record["diverged"]) for record in self.records)

    def curve(self, metric: str, against: str, **labels: Any) -> list[tuple[list[float], list[float]]]:
        """One (x, y) per seed from the recorded evaluations."""
        curves = []
        for record in self.where(**labels).records:
            points = [(row[against], row[metric]) for row in record["history"] if row.get(metric) is not None]
            curves.append(([x for x, _ in points], [y for _, y in points]))
        return curves


def _data(record: Record) -> str:
    keys = ("task.name", "task.samples", "task.validation", "task.clients")
    return json.dumps([record["settings"].get(key) for key in keys])


def _entry(record: Record) -> str:
    return json.dumps(record["labels"], sort_keys=True)


def spread(values: Sequence[float]) -> str:
    """`0.44 ± 0.01 (5)`: mean, standard deviation and how many; a single value alone.

    `0.44 ± 0.01 (mean of 4 of 5 seeds, 1 diverged)` where a run has no value: a mean that leaves some out says so.
    """
    finite = [value for value in values if not math.isnan(value)]
    if not values:
        return ""
    lost = len(values) - len(finite)
    if not finite:
        return "diverged"
    mean = sum(finite) / len(finite)
    text = f"{mean:.3f}"
    if len(finite) > 1:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in finite) / (len(finite) - 1))
        text += f" ± {deviation:.3f}"
    if lost:
        return f"{text} (mean of {len(finite)} of {len(values)} seeds, {lost} diverged)"
    return f"{text} ({len(finite)})" if len(finite) > 1 else text
