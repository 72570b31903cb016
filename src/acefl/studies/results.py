"""What a study left behind, as objects: tables to work with, runs to look into, and the page.

Everything is read from the recorded files when it is asked for, so the object of a comparison that was just made and
the one that `acefl.load` gives years later are the same. Each may stand where a path may.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acefl import report
from acefl.core import notebook
from acefl.core.files import read_json
from acefl.runs import record
from acefl.runs.record import Run, document

if TYPE_CHECKING:
    import pandas as pd

    from acefl.report.standings import Board


class Recorded(os.PathLike[str]):
    """A recorded directory.

    Args:
        directory: Where it is.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def __fspath__(self) -> str:
        return str(self.directory)

    def __str__(self) -> str:
        return str(self.directory)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.directory / name

    def __getattr__(self, name: str) -> Any:
        """What a path has: these objects were paths once, and code that took them for such goes on working."""
        if name.startswith("_") or not hasattr(Path, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.directory, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    @property
    def summary(self) -> pd.DataFrame:
        """The results as a table."""
        raise NotImplementedError

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Make the page again from the files, and say where it is.

        Args:
            out: The file to write; None: `report.html` in the directory.
        """
        return report.build(self.directory, None if out is None else Path(out))

    def _repr_html_(self) -> str:
        text = self.summary.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
        rows = text.to_numpy().tolist()
        return notebook.table(repr(self), list(map(str, text.columns)), rows, [[False] * len(row) for row in rows])


class Comparison(Recorded):
    """Methods compared on the same seeds: what `compare` returns, and `load` reads.

    Args:
        directory: Where it is recorded.
    """

    @cached_property
    def content(self) -> dict[str, Any]:
        """How it was made, with every learning rate tried: `compare.json`."""
        return document(self.directory / "compare.json", {"methods": list, "seeds": list})

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per method, best mean first: each metric with its `_std` over seeds and whether seeds show that the
        method `_leads`, what it cost, and its learning rate."""
        return report.summary_table(self.directory)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Every method's runs by its label, in the order of the seeds."""
        return {
            entry["label"]: [record.load(self.directory / where) for where in entry["runs"]]
            for entry in self.content["methods"]
        }

    @cached_property
    def history(self) -> pd.DataFrame:
        """The curves: a row per evaluation of every run, with its method and seed first."""
        import pandas as pd

        frames = [
            pd.DataFrame(record.RunFiles.read(self.directory / where).rows()).assign(method=entry["label"], seed=seed)
            for entry in self.content["methods"]
            for seed, where in zip(self.content["seeds"], entry["runs"], strict=True)
        ]
        table = pd.concat(frames, ignore_index=True)
        first = ["method", "seed", "step", "arrival", "time"]
        return table[[*first, *(name for name in table.columns if name not in first)]]

    @property
    def best(self) -> str:
        """The method with the best mean. Whether seeds show that it is better is in `summary`, under `_leads`."""
        return str(self.summary["method"].iloc[0])

    def __repr__(self) -> str:
        labels = ", ".join(entry["label"] for entry in self.content["methods"])
        return f"Comparison of {labels} on seeds {self.content['seeds']} in {self.directory}"

    def _repr_html_(self) -> str:
        from acefl.report import tables

        text, bold = tables.readable(self.summary), tables.bold(self.summary)
        shown = notebook.table(
            str(self.content.get("title") or repr(self)), list(text.columns), text.to_numpy(), bold.to_numpy()
        )
        return f"{shown}{notebook.note(tables.why_bold(self.summary))}"


class Sweep(Recorded):
    """A grid of runs: what `acefl.studies.sweep.sweep` returns.

    Args:
        directory: Where it is recorded.
    """

    @property
    def summary(self) -> pd.DataFrame:
        """A row per finished cell: what varied, the final metrics, steps, arrivals, time."""
        from acefl.report import sweeps

        return sweeps.results(self.directory)

    @property
    def done(self) -> int:
        """How many cells are finished."""
        return len(self.summary)

    @property
    def failed(self) -> dict[str, str]:
        """Why a cell failed, in a line, by its name."""
        notes = sorted((self.directory / "cells").glob("*.failed.json"))
        return {path.name.removesuffix(".failed.json"): str(read_json(path)["problem"]) for path in notes}

    def run(self, cell: str) -> Run:
        """One finished run, by its name in the column `cell`."""
        return record.load(self.directory / "cells" / cell)


class Search(Recorded):
    """What a search with `tune(..., out=...)` tried and found.

    Args:
        directory: Where it is recorded.
    """

    @cached_property
    def content(self) -> dict[str, Any]:
        """The search as recorded: `tuning.json`."""
        return document(self.directory / "tuning.json", {"found": dict, "trials": list})

    @property
    def method(self) -> str:
        """The method with the settings that were found."""
        return str(self.content["found"]["method"])

    @property
    def lr(self) -> float:
        """The learning rate that was found."""
        return float(self.content["found"]["lr"])

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per trial: its settings, the share of a run it was taken to, its score and its arrivals."""
        import pandas as pd

        worst = -math.inf if self.content.get("larger") else math.inf
        return pd.DataFrame(
            {
                **trial["settings"],
                "share": trial["quarters"] / 4,
                "score": worst if trial["score"] is None else trial["score"],
                "arrivals": trial["arrivals"],
            }
            for trial in self.content["trials"]
        )


class Leaderboard(Recorded):
    """A recorded leaderboard.

    Args:
        directory: Where it is recorded.
    """

    @cached_property
    def board(self) -> Board:
        """Where every method stands."""
        from acefl.report.standings import Board

        return Board.read(self.directory)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per task, scenario and method: its mean by what the task is shown by, whether it leads, its rate."""
        import pandas as pd

        return pd.DataFrame(
            {
                "task": task,
                "scenario": scenario,
                "method": one.method,
                "metric": self.board.shown(task),
                "mean": one.mean,
                "leads": one.leads,
                "lr": one.row["lr"],
            }
            for task in self.board.tasks
            for scenario in self.board.scenarios
            for one in self.board.column(task, scenario, self.board.shown(task))
        )


class Diagnosis(Recorded):
    """What `acefl diagnose` measured.

    Args:
        directory: Where it is recorded.
    """

    @property
    def methods(self) -> Comparison:
        """The comparison on the task itself, with the error terms among its metrics."""
        return Comparison(self.directory / "methods")

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row per method: how large its noise, bias and delay are."""
        from acefl.report import diagnosis

        return diagnosis.impact(diagnosis.load(self.directory))
