"""What a run writes, and how it is read again.

A run directory holds `config.json`, `metrics.jsonl` (one line per evaluation), `events.parquet` (one row per arrival),
`clients.parquet` (one row per client), `summary.json` and `model.safetensors`; where answers can be lost, also
`journal.parquet` (one row per thing that happened to the server, see `acefl.core.journal`). Reports read these files
and nothing else; loading never executes code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shlex
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from acefl.core import notebook
from acefl.core.errors import InvalidInput, require
from acefl.core.files import atomic_directory, check_finished, json_object, read_json, read_text, write_json
from acefl.core.metrics import PLACE, Better, Reached, Target, check_measured
from acefl.core.settings import plain
from acefl.core.state import blocks, snapshot
from acefl.core.turns import Turns
from acefl.core.types import Arrival, State, Vector
from acefl.fleets.base import Trip

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
JOURNAL = "journal.parquet"


class Events:
    """One row per arrival, as columns that grow without boxing."""

    def __init__(self) -> None:
        self.time = array("d")
        self.client = array("q")
        self.trained_on = array("q")
        self.version = array("q")
        self.reasons: dict[int, str] = {}  # row -> why it was refused

    def add(self, time: float, arrival: Arrival, reason: str, trip: Trip | None = None) -> None:
        """One more arrival; an empty reason says that it was accepted."""
        if reason:
            self.reasons[len(self.time)] = reason
        self.time.append(time)
        self.client.append(arrival.client)
        self.trained_on.append(arrival.trained_on)
        self.version.append(arrival.version)

    def add_turns(self, turns: Turns, versions: Sequence[int]) -> None:
        """`add` for arrivals that were accepted one after another, when the model had these versions."""
        self.time.extend(turns.times)
        self.client.extend(turns.clients)
        self.trained_on.extend(turns.trained_on)
        self.version.extend(versions)

    def state_dict(self) -> State:
        """In blocks of rows that never change again, so that a later checkpoint writes few of them anew."""
        names = [f"{start}-{stop}" for start, stop in blocks(len(self.time))]
        return {"rows": snapshot(names, self._rows), "words": self._words()}

    def load_state_dict(self, state: State) -> None:
        """Become the log that was saved."""
        words = state["words"]
        self.time, self.client, self.trained_on, self.version = array("d"), array("q"), array("q"), array("q")
        self.reasons = {}
        for rows in state["rows"].values():
            first = len(self.time)
            for column, numbers in zip(self._columns, rows[:-1], strict=True):
                column.frombytes(numbers.numpy().tobytes())
            refused = rows[-1].nonzero().flatten().tolist()
            self.reasons |= {first + row: words[int(rows[-1, row])] for row in refused}

    @property
    def _columns(self) -> list[array[Any]]:
        return [self.time, self.client, self.trained_on, self.version]

    def _words(self) -> list[str]:
        """Every reason there was, by its number: a log that grows never changes the numbers given out before."""
        return list(dict.fromkeys(("", *self.reasons.values())))

    def _rows(self, name: str) -> torch.Tensor:
        """The rows named `start-stop` as one tensor: the columns' bits, then the number of the reason."""
        start, stop = map(int, name.split("-"))
        number = {word: number for number, word in enumerate(self._words())}
        rows = torch.zeros(len(self._columns) + 1, stop - start, dtype=torch.int64)
        for into, column in zip(rows[:-1], self._columns, strict=True):
            into.copy_(torch.frombuffer(column[start:stop], dtype=torch.int64))
        refused = [row for row in self.reasons if start <= row < stop]
        rows[-1, torch.tensor(refused, dtype=torch.int64) - start] = torch.tensor(
            [number[self.reasons[row]] for row in refused], dtype=torch.int64
        )
        return rows

    def frame(self) -> pd.DataFrame:
        """As a table, one row per arrival: `run.events`."""
        import pandas as pd

        reason = [self.reasons.get(row, "") for row in range(len(self.time))]
        return pd.DataFrame(
            {
                "time": self.time,
                "client": self.client,
                "trained_on": self.trained_on,
                "version": self.version,
                "accepted": [not r for r in reason],
                "reason": reason,
            }
        )


class TravelEvents(Events):
    """One row per answer, with when its task was sent and how many bytes went either way."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.uplink, self.downlink = array("d"), array("q"), array("q")

    def add(self, time: float, arrival: Arrival, reason: str, trip: Trip | None = None) -> None:
        super().add(time, arrival, reason)
        assert trip is not None, "a fleet whose updates travel says how"
        self.sent.append(trip.sent)
        self.uplink.append(trip.uplink)
        self.downlink.append(trip.downlink)

    def frame(self) -> pd.DataFrame:
        return super().frame().assign(sent=self.sent, uplink=self.uplink, downlink=self.downlink)

    @property
    def _columns(self) -> list[array[Any]]:
        return [*super()._columns, self.sent, self.uplink, self.downlink]

    def load_state_dict(self, state: State) -> None:
        self.sent, self.uplink, self.downlink = array("d"), array("q"), array("q")
        super().load_state_dict(state)


@dataclass
class Run:
    """A finished run: numbers to look at, and everything a report needs.

    Args:
        config: Settings that made the run, and the machine.
        metrics: One row per evaluation.
        model: The final model as a flat vector.
        steps: Server steps.
        arrivals: Accepted arrivals.
        time: When it ended, in the fleet's time.
        participation: Accepted arrivals per client.
        clients: One row per client: name (where clients have one), speed, samples, participation, accuracy, loss.
        events: One row per upload.
        refused: Refused arrivals by reason.
        refused_by_client: The same for each client; unknown clients as -1.
        wall_seconds: How long it took.
        diverged: Whether it diverged.
        journal: One row per model sent, arrival, loss and join, in order; None where nothing could be lost.
    """

    config: dict[str, Any] = field(repr=False)
    metrics: list[dict[str, float]] = field(repr=False)
    model: Vector = field(repr=False)
    steps: int
    arrivals: int
    time: float
    participation: list[int] = field(repr=False)
    clients: list[dict[str, Any]] = field(repr=False)
    events: pd.DataFrame = field(repr=False)
    refused: dict[str, int] = field(default_factory=dict)
    refused_by_client: dict[int, dict[str, int]] = field(default_factory=dict, repr=False)  # unknown clients as -1
    wall_seconds: float = 0.0
    diverged: bool = False
    journal: pd.DataFrame | None = field(default=None, repr=False)

    @property
    def final(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return {name: value for name, value in self.metrics[-1].items() if name not in PLACE}

    @property
    def better(self) -> Better:
        """Which way metrics are better that are not acefl's own, as recorded."""
        return dict(self.config.get("better", {}))

    def time_to(self, metric: str, value: float) -> Reached | None:
        """When an evaluation first reached this value: its time, arrivals and steps; None: none did.

        At least the value, or at most, by which way the metric is better. Nothing between evaluations is guessed: the
        more `evaluations`, the finer.

        Args:
            metric: A column of `history`.
            value: To reach.
        """
        measured = {name: found for row in self.metrics for name, found in row.items()}
        check_measured(metric, measured, self.better)
        return Target.of((metric, value)).first(self.metrics, self.better)

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended and what it cost."""
        return {
            "final": self.final,
            "steps": self.steps,
            "arrivals": self.arrivals,
            "uploads": len(self.events),
            "time": self.time,
            "wall_seconds": self.wall_seconds,
            "diverged": self.diverged,
            "refused": self.refused,
            "refused_by_client": {str(client): reasons for client, reasons in self.refused_by_client.items()},
            **self._target,
        }

    @property
    def _target(self) -> dict[str, Any]:
        """Whether and when the target was reached, where the run had one."""
        aimed = self.config["stop"].get("target")
        if aimed is None:
            return {}
        aim = Target.of(aimed)
        found = aim.first(self.metrics, self.better)
        return {"target": {**asdict(aim), "reached": asdict(found) if found is not None else None}}

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per evaluation: step, arrival, time and the metrics."""
        import pandas as pd

        return pd.DataFrame(self.metrics)

    def _repr_html_(self) -> str:
        """For notebooks: how it ended, and what it cost."""
        cost = {"server steps": self.steps, "uploads": len(self.events), "time": self.time}
        ended = {"diverged": True} if self.diverged else {}
        title = f"{self.config.get('label', 'run')} on {self.config.get('task', {}).get('name', 'a task')}"
        return notebook.pairs(title, {**self.final, **cost, **ended})

    @cached_property
    def by_client(self) -> pd.DataFrame:
        """The rows of `clients`, by name; by number where clients have no names."""
        import pandas as pd

        return pd.DataFrame(self.clients).set_index("name" if "names" in self.config else "client")

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write the run directory: all of it, or nothing."""
        import pandas as pd
        from safetensors.torch import save_file

        with atomic_directory(Path(directory)) as into:
            write_json(into / "config.json", self.config)
            lines = [json.dumps(plain(row), allow_nan=False) for row in self.metrics]
            (into / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            self.events.to_parquet(into / "events.parquet", index=False)
            pd.DataFrame(self.clients).to_parquet(into / "clients.parquet", index=False)
            if self.journal is not None:
                self.journal.to_parquet(into / JOURNAL, index=False)
            write_json(into / "summary.json", self.summary)
            save_file({"model": self.model.cpu().contiguous()}, into / "model.safetensors")
        return Path(directory)


@dataclass(frozen=True)
class RunFiles:
    """A run directory. Small files are read at once, large ones when somebody asks for them."""

    directory: Path
    config: dict[str, Any]
    summary: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, needs: Mapping[str, type] | None = None) -> Self:
        """needs: what has to be in the configuration, and of which kind."""
        if not (directory / "config.json").exists():
            check_finished(directory)
        config = document(directory / "config.json", needs or {})
        return cls(directory, config, document(directory / "summary.json", {"final": dict}, versioned=False))

    def rows(self) -> list[dict[str, float]]:
        """One per evaluation, in the order they were made."""
        path = self.directory / "metrics.jsonl"
        lines = [line for line in enumerate(read_text(path).splitlines(), start=1) if line[1].strip()]
        require(bool(lines), f"{path}: no rows in it")
        objects = [json_object(line, f"{path} line {number}") for number, line in lines]
        return [{key: math.nan if value is None else value for key, value in row.items()} for row in objects]

    def table(self, name: str, columns: Sequence[str] = ()) -> pd.DataFrame:
        """A parquet file; if it has rows, it has these columns."""
        import pandas as pd
        from pyarrow import ArrowException

        path = self.directory / name
        require(path.exists(), f"{path}: missing")
        try:
            frame = pd.read_parquet(path)
        except (*_UNREADABLE, ArrowException) as problem:
            raise InvalidInput(f"{path}: not a readable parquet file ({_one_line(problem)})") from None
        for column in columns:
            require(frame.empty or column in frame.columns, f"{path}: no column {column!r}")
        return frame

    def model(self) -> Vector:
        """The final model, read from its file; InvalidInput: there is none, or it is not readable."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.directory / "model.safetensors"
        require(path.exists(), f"{path}: missing")
        try:
            return load_file(path)["model"]
        except (*_UNREADABLE, SafetensorError) as problem:
            raise InvalidInput(f"{path}: not a readable model ({_one_line(problem)})") from None


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NotImplementedError)


def document(path: Path, needs: Mapping[str, type], *, versioned: bool = True) -> dict[str, Any]:
    """A JSON file of a record, of the format that is read here and with what is needed of it."""
    content = read_json(path)
    found = content.get("format")
    require(
        not versioned or found == FORMAT, f"{path}: format {found!r}, but this version of acefl reads format {FORMAT}"
    )
    for key, kind in needs.items():
        require(isinstance(content.get(key), kind), f"{path}: {key!r} is missing or not a {kind.__name__}")
    return content


def load(directory: str | os.PathLike[str]) -> Run:
    """Read a run directory back.

    Args:
        directory: What `out=` or `run.save` named.
    """
    files = RunFiles.read(Path(directory))
    summary, clients = files.summary, files.table("clients.parquet", ["participation"])
    metrics, events, model = files.rows(), files.table("events.parquet"), files.model()
    noted = (files.directory / JOURNAL).exists()
    journal = files.table(JOURNAL, ["turn", "kind", "client", "version"]) if noted else None
    try:
        return Run(
            config=files.config,
            metrics=metrics,
            model=model,
            steps=int(summary["steps"]),
            arrivals=int(summary["arrivals"]),
            time=float(summary["time"]),
            participation=[int(count) for count in clients["participation"]],
            clients=[{str(name): value for name, value in row.items()} for row in clients.to_dict("records")],
            events=events,
            refused=dict(summary["refused"]),
            refused_by_client={int(c): dict(why) for c, why in summary.get("refused_by_client", {}).items()},
            wall_seconds=float(summary["wall_seconds"]),
            diverged=bool(summary["diverged"]),
            journal=journal,
        )
    except _UNREADABLE as problem:
        raise InvalidInput(f"{directory} is not a complete run directory: {_one_line(problem)}") from None


def settings_name(settings: Mapping[str, Any]) -> str:
    """The name of a run that is known by its settings alone, as the cells of a sweep are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def machine() -> dict[str, Any]:
    """What ran it."""
    import acefl

    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "acefl": acefl.__version__,
    }


def command_line(otherwise: str) -> str:
    """What a person typed to get here, or how a program would have."""
    return shlex.join(["acefl", *sys.argv[1:]]) if Path(sys.argv[0]).name == "acefl" else otherwise


def run_name(name: str, seed: int) -> str:
    """A directory name for a method and a seed, without characters that shells and browsers trip over."""
    plain = "".join(c if c.isalnum() or c in "=.-" else "_" for c in name).strip("_")
    return f"{plain}-seed{seed}"
