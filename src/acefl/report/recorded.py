"""What a report knows: the files of one run, or of a comparison of several, read back and checked.

A lone run is read as a comparison of one method over one seed, so that everything after this module has one case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from acefl.core.errors import InvalidInput, require
from acefl.core.files import check_finished
from acefl.core.metrics import Better, Target, declared, direction
from acefl.runs.record import RunFiles, document


class Run(RunFiles):
    """One run directory, as figures and tables ask for it."""

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def diverged(self) -> bool:
        return bool(self.summary.get("diverged", False))

    def final(self, metric: str) -> float:
        """The metric at the end of the run; NaN when the run has no such number (null in JSON)."""
        return _number(self.summary["final"].get(metric))

    def start(self, metric: str) -> float:
        """The metric of the starting model; NaN when it was not evaluated."""
        first = self.metrics.iloc[0]
        return _number(first.get(metric)) if first["arrival"] == 0 and first["step"] == 0 else float("nan")

    def total(self, name: str) -> float:
        """A count of the whole run: steps, arrivals, uploads, time, wall_seconds."""
        return _number(self.summary.get(name))

    def time_to(self, target: Target) -> float:
        """When an evaluation first reached the target; NaN: none did."""
        found = target.first(self.rows(), declared(self.config.get("better") or {}))
        return float("nan") if found is None else found.time

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per evaluation, in the order they were made."""
        frame = pd.DataFrame(self.rows())
        for column in ("step", "arrival", "time"):
            require(column in frame.columns, f"{self.directory / 'metrics.jsonl'}: no column {column!r}")
        return frame

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client, fastest first: the order every figure about clients uses."""
        frame = self.table("clients.parquet", ["client", "mean_time", "participation"])
        require(not frame.empty, f"{self.directory / 'clients.parquet'}: no rows in it")
        return frame.sort_values(["mean_time", "client"], kind="stable").reset_index(drop=True)

    def events(self) -> pd.DataFrame:
        """One row per answer that came in; those of real clients also say when they were asked and what travelled.

        Read anew each time: a comparison has many such logs, and most figures need none.
        """
        return self.table("events.parquet", ["trained_on", "version", "accepted"])

    @cached_property
    def staleness(self) -> dict[int, int]:
        """How many accepted arrivals had each staleness: all a histogram needs of a long event log."""
        events = self.events()
        if events.empty:
            return {}
        accepted = events[events["accepted"].astype(bool)]
        values, counts = np.unique((accepted["version"] - accepted["trained_on"]).to_numpy(int), return_counts=True)
        return dict(zip(values.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class Method:
    """One method of a comparison: its settings, how its lr was found, and its runs, one per seed."""

    label: str
    method: str
    rule: dict[str, Any]
    lr: float
    tuning: list[tuple[float, float]]  # (lr, objective) of every trial, by lr; NaN where it diverged
    runs: list[Run]

    def finals(self, metric: str) -> list[float]:
        """The metric at the end of each run, in the order of the seeds."""
        return [run.final(metric) for run in self.runs]

    def mean(self, metric: str) -> float:
        """The mean of these. A NaN stays one: without the seeds that diverged it would flatter the method."""
        return float(np.mean(self.finals(metric)))

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """Methods on one task in one scenario, and how the comparison was made."""

    directory: Path
    title: str
    task: dict[str, Any]
    scenario: dict[str, Any]
    stop: dict[str, Any]
    seeds: list[int]
    methods: list[Method]
    command: str
    machine: dict[str, Any]
    wall_seconds: float
    objective: str = "client_loss"  # what learning rates were chosen by
    by: str = ""  # what it was told to go by, if anything

    @cached_property
    def better(self) -> Better:
        """Which way metrics are better that are not acefl's own."""
        return {name: way for run in self.runs for name, way in declared(run.config.get("better") or {}).items()}

    @property
    def target(self) -> Target | None:
        """What runs were to reach, if anything, and if it is known which way that is."""
        aimed = self.stop.get("target")
        target = None if aimed is None else Target.of(aimed)
        return target if target is not None and direction(target.metric, self.better) is not None else None

    @property
    def runs(self) -> list[Run]:
        return [run for method in self.methods for run in method.runs]

    @property
    def in_real_time(self) -> bool:
        """Whether clients were real, so that time is in seconds and no seed decided who arrived when."""
        return self.scenario.get("clock") == "wall"

    @property
    def time_heading(self) -> str:
        return "seconds" if self.in_real_time else "virtual time"

    @property
    def speeds(self) -> str:
        """How far apart clients' speeds were, in words: by what was set, or by what a trace held."""
        source = next((name for name in ("trace", "durations", "devices") if self.scenario.get(name)), None)
        if self.scenario.get("visits"):
            return "clients came when they really did"
        if source is not None:
            times = self.runs[0].clients["mean_time"].to_numpy(float)
            told = {"trace": "from a trace", "durations": "as given"}.get(source, f"of {self.scenario[source]}")
            return f"speeds {told}, the slowest client {times.max() / times.min():.3g}× the fastest"
        return f"speeds spread {self.scenario['spread']:g}×" if self.scenario.get("spread") else ""

    def measures(self, metric: str) -> bool:
        """Whether any run ended with a number for this metric."""
        return any(np.isfinite(run.final(metric)) for run in self.runs)


def load(directory: Path) -> Comparison:
    """Read a run or comparison directory; `InvalidInput` with one line naming the file when that cannot be done."""
    directory = Path(directory)
    if not directory.is_dir():
        raise InvalidInput(f"{directory}: no such directory")
    if (directory / "compare.json").exists():
        return _comparison(directory)
    if (directory / "config.json").exists():
        return _lone_run(directory)
    check_finished(directory)
    raise InvalidInput(f"{directory}: neither compare.json nor config.json is here, so it is no recorded run")


def _comparison(directory: Path) -> Comparison:
    path = directory / "compare.json"
    data = document(path, {"task": dict, "scenario": dict, "stop": dict, "seeds": list, "methods": list})
    for key in ("methods", "seeds"):
        if not data[key]:
            raise InvalidInput(f"{path}: no {key} in it")
    methods = [_method(directory, path, entry) for entry in data["methods"]]
    labels = [method.label for method in methods]
    if len(set(labels)) < len(labels):
        raise InvalidInput(f"{path}: two methods have the same label")
    return _of(methods, data, path)


def _of(methods: list[Method], data: dict[str, Any], path: Path) -> Comparison:
    """These methods, with what a file says of how they were compared."""
    return Comparison(
        directory=path.parent,
        title=str(data.get("title") or "Comparison of asynchronous methods"),
        task=data["task"],
        scenario=data["scenario"],
        stop=_settings(data, "stop", path),
        seeds=list(data["seeds"]),
        methods=methods,
        command=str(data.get("command") or ""),
        machine=_settings(data, "machine", path),
        wall_seconds=_number(data.get("wall_seconds")),
        objective=str(data.get("objective") or "client_loss"),
        by=str(data.get("by") or ""),
    )


def _method(directory: Path, path: Path, entry: Any) -> Method:
    if not isinstance(entry, dict) or not entry.get("label") or not entry.get("runs"):
        raise InvalidInput(f"{path}: each method needs a label and its runs")
    trials = entry.get("tuning") or []
    if not all(isinstance(trial, dict) and isinstance(trial.get("lr"), int | float) for trial in trials):
        raise InvalidInput(f"{path}: each trial in the tuning of {entry['label']} needs an lr")
    return Method(
        label=str(entry["label"]),
        method=str(entry.get("method") or entry["label"]),
        rule=_settings(entry, "rule", path),
        lr=_number(entry.get("lr")),
        tuning=sorted(((float(t["lr"]), _number(t.get("score"))) for t in trials), key=lambda trial: trial[0]),
        runs=[_run(directory / str(where)) for where in entry["runs"]],
    )


def _lone_run(directory: Path) -> Comparison:
    run, path = _run(directory), directory / "config.json"
    config = run.config
    label = str(config.get("label") or config["method"])
    rule, lr = _settings(config, "rule", path), _number(config.get("lr"))
    alone = Method(label, str(config["method"]), rule, lr, tuning=[], runs=[run])
    title = config.get("title") or f"{label} on {config['task'].get('name', 'its task')}"
    own = {"title": title, "seeds": [run.seed], "wall_seconds": run.total("wall_seconds")}
    return _of([alone], {**config, **own}, path)


def _run(directory: Path) -> Run:
    return Run.read(directory, {"method": str, "seed": int, "task": dict, "scenario": dict})


def _settings(data: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """Settings that may be left out, but not be something else."""
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: {key!r} is not a dict")
    return value


def _number(value: Any) -> float:
    """JSON's null stands for NaN: JSON itself has no word for it."""
    return float(value) if isinstance(value, int | float) else float("nan")
