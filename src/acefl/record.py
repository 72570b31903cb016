"""What a run writes, and how it is read again.

A run directory holds `config.json`, `metrics.jsonl` (one line per evaluation), `events.parquet` (one row per arrival),
`clients.parquet` (one row per client), `summary.json` and `model.safetensors`. Reports read these files and nothing
else; loading never executes code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from acefl.errors import InvalidInput, require
from acefl.state import blocks, lend
from acefl.types import Arrival, State, Vector

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
CHECKPOINT = "checkpoint"  # the folder of a run in progress, see `acefl.rundir`


class Events:
    """One row per arrival, as columns that grow without boxing."""

    def __init__(self) -> None:
        self.time = array("d")
        self.client = array("q")
        self.trained_on = array("q")
        self.version = array("q")
        self.reasons: dict[int, str] = {}  # row -> why it was refused

    def add(self, time: float, arrival: Arrival, reason: str) -> None:
        if reason:
            self.reasons[len(self.time)] = reason
        self.time.append(time)
        self.client.append(arrival.client)
        self.trained_on.append(arrival.trained_on)
        self.version.append(arrival.version)

    def state_dict(self) -> State:
        names = [f"{start}-{stop}" for start, stop in blocks(len(self.time))]
        return {"rows": lend(names, self._rows), "words": self._words()}

    def load_state_dict(self, state: State) -> None:
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


@dataclass
class Run:
    """A finished run: numbers to look at, and everything a report needs."""

    config: dict[str, Any] = field(repr=False)
    metrics: list[dict[str, float]] = field(repr=False)
    model: Vector = field(repr=False)
    steps: int
    arrivals: int
    time: float
    participation: list[int] = field(repr=False)
    clients: list[dict[str, float]] = field(repr=False)  # mean_time, samples, participation, accuracy, loss, last_sent
    events: pd.DataFrame = field(repr=False)
    refused: dict[str, int] = field(default_factory=dict)
    refused_by_client: dict[int, dict[str, int]] = field(default_factory=dict, repr=False)  # unknown clients as -1
    wall_seconds: float = 0.0
    diverged: bool = False

    @property
    def final(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return {name: value for name, value in self.metrics[-1].items() if name not in ("step", "arrival", "time")}

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
        }

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per evaluation: step, arrival, time and the metrics."""
        import pandas as pd

        return pd.DataFrame(self.metrics)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write the run directory: all of it, or nothing."""
        import pandas as pd
        from safetensors.torch import save_file

        with whole_directory(Path(directory)) as into:
            write_json(into / "config.json", self.config)
            lines = [json.dumps(plain(row), allow_nan=False) for row in self.metrics]
            (into / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            self.events.to_parquet(into / "events.parquet", index=False)
            pd.DataFrame(self.clients).to_parquet(into / "clients.parquet", index=False)
            write_json(into / "summary.json", self.summary)
            save_file({"model": self.model.cpu().contiguous()}, into / "model.safetensors")
        return Path(directory)


def load(directory: str | os.PathLike[str]) -> Run:
    """Read a run directory back."""
    import pandas as pd
    from pyarrow import ArrowException
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(directory)
    config, summary = read_json(folder / "config.json"), read_json(folder / "summary.json")
    if config.get("format") != FORMAT:
        raise InvalidInput(f"{folder / 'config.json'} has format {config.get('format')!r}; this acefl reads {FORMAT}")
    try:
        lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
        metrics = [_numbers(dict(json.loads(line))) for line in lines]
        require(bool(metrics), "metrics.jsonl is empty")
        events = pd.read_parquet(folder / "events.parquet")
        clients = pd.read_parquet(folder / "clients.parquet")
        model = load_file(folder / "model.safetensors")["model"]
        return Run(
            config=config,
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
        )
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
        *(ArrowException, SafetensorError),
    ) as error:
        reason = " ".join(f"{error}".split())
        raise InvalidInput(f"{folder} is not a complete run directory: {reason}") from None


@contextlib.contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A directory that appears at `target` complete or not at all; a run that is already there is replaced."""
    refuse_foreign(target)
    target = target.resolve()
    new_parents = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror}: {error.filename}") from None
    try:
        yield beside
        beside.chmod(0o755)
        if target.exists():
            _replace(target, beside)
        else:
            beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        for parent in new_parents:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _replace(target: Path, beside: Path) -> None:
    """Put the new directory in the old one's place, which stays whole until it is there."""
    old = beside.with_name(f"{beside.name}-old")
    target.rename(old)
    try:
        beside.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def refuse_foreign(target: Path) -> None:
    """Refuse a place that a record must not replace: anything that is not a record, and where this process stands."""
    if (target / CHECKPOINT / "lock").exists():
        raise InvalidInput(f"{target} holds an interrupted run; resume it, or remove {target / CHECKPOINT}")
    if target.exists() and not (target.is_dir() and _is_ours(target)):
        raise InvalidInput(f"{target} exists and is not an acefl record; allowed: a new or empty directory")
    if Path.cwd().is_relative_to(target.resolve()):
        raise InvalidInput(f"{target} is or holds the current directory; allowed: a directory beside or below it")


def _is_ours(directory: Path) -> bool:
    """Empty, or with a file that only acefl writes: a config.json may be any program's and is not ours to delete."""
    if all(entry.name == CHECKPOINT for entry in directory.iterdir()):
        return True
    for name in ("compare.json", "config.json", "diagnose.json"):
        with contextlib.suppress(InvalidInput):
            content = read_json(directory / name)
            return isinstance(content.get("machine"), dict) and "acefl" in content["machine"]
    return False


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(plain(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one clear line."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} does not hold a JSON object")
    return content


def settings_name(settings: Mapping[str, Any]) -> str:
    """The name of a run that is known by its settings alone, as the cells of a sweep are."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinity, which it has not, become null, and what it does not know its text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in row.items()}


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
