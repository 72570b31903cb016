"""Live curves: every evaluation of a run goes to TensorBoard, Weights & Biases or MLflow as it is made.

A logger is an observer like any other, so it stands last in `observers`, after the probes whose numbers it shows:

    with TensorBoard("logs/ace") as log:
        simulate(task, ACE(), lr=0.1, observers=[Participation(), ErrorTerms(), log])

A new place to log to is one small class: two methods, `write` and `close`.
"""

from __future__ import annotations

import importlib
import math
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from acefl.core.errors import InvalidInput, one_of
from acefl.core.settings import parse_call
from acefl.runs.observers import Observer, RunInProgress

_PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard", "pip install 'acefl[tensorboard]'"),
    "wandb": ("wandb", "wandb", "pip install wandb"),
    "mlflow": ("mlflow", "mlflow", "pip install mlflow"),
}
AXES = ("step", "arrival", "time")
_GROUPS = {
    "error": ("noise", "bias", "delay", "mse", "probe_seconds"),
    "participation": ("influence_", "staleness_"),
    "clients": ("slow_", "fast_", "worst_", "client_", "heldout_", "unscored_"),
}


class Logger(Observer):
    """What all loggers share: they hear of evaluations, and of the run's settings before anything happens."""

    def started(self, run: RunInProgress) -> None:
        self._watched = weakref.ref(run)  # which holds this logger: a circle would keep its files open
        self.configure(run.config)

    def evaluated(self, row: dict[str, float]) -> None:
        metrics = {_grouped(name): value for name, value in row.items() if name not in AXES and math.isfinite(value)}
        axes = {axis: row[axis] for axis in AXES}
        self.write(metrics, axes)
        self.write_clients(self._each_client, axes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def configure(self, config: Mapping[str, Any]) -> None:
        """Note what made the run; a logger without a place for it leaves this out."""

    def write(self, metrics: Mapping[str, float], axes: Mapping[str, float]) -> None:
        """Show the metrics of one evaluation, made at this step, arrival and time."""
        raise NotImplementedError

    def write_clients(self, each: Callable[[], Mapping[str, list[float]]], axes: Mapping[str, float]) -> None:
        """Show how clients differ: `each()` has one number per client and column, as in `run.clients`. A logger without
        a place for distributions leaves this out, and then they are not computed."""

    def close(self) -> None:
        """Nothing more will be written."""

    def _each_client(self) -> dict[str, list[float]]:
        run = self._watched()
        rows = run.clients() if run is not None else []
        names = [name for name in rows[0] if name not in ("client", "name", "mean_time", "samples")] if rows else []
        known = {name: [row[name] for row in rows if math.isfinite(row[name])] for name in names}
        return {name: values for name, values in known.items() if values}


class TensorBoard(Logger):
    """Scalars, and histograms over clients, in a directory that `tensorboard --logdir` reads while the run goes on.

    The horizontal axis is the number of arrivals: what methods that step differently often have in common.

    Args:
        directory: Where the event files go.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        summary = _load(*_PACKAGES["tensorboard"])
        self._writer = summary.SummaryWriter(str(directory), max_queue=1000)

    def configure(self, config: Mapping[str, Any]) -> None:
        self._writer.add_text("settings", "\n".join(f"    {name}: {value}" for name, value in _flat(config).items()))

    def write(self, metrics: Mapping[str, float], axes: Mapping[str, float]) -> None:
        for name, value in {**metrics, "progress/step": axes["step"], "progress/time": axes["time"]}.items():
            self._writer.add_scalar(name, value, int(axes["arrival"]))

    def write_clients(self, each: Callable[[], Mapping[str, list[float]]], axes: Mapping[str, float]) -> None:
        for name, values in each().items():
            self._writer.add_histogram(f"each client/{name}", np.asarray(values), int(axes["arrival"]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Logger):
    """A Weights & Biases run, over the number of arrivals. `settings` go to `wandb.init`, such as
    project="asynchronous", mode="offline"."""

    def __init__(self, **settings: Any) -> None:
        wandb = _load(*_PACKAGES["wandb"])
        self._run = wandb.init(**settings)
        # An axis of its own: W&B ignores what comes for an earlier step than the last, as from nodes that evaluate.
        self._run.define_metric("*", step_metric="arrival")

    def configure(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(_flat(config))

    def write(self, metrics: Mapping[str, float], axes: Mapping[str, float]) -> None:
        self._run.log({**metrics, **axes})

    def close(self) -> None:
        self._run.finish()


class MLflow(Logger):
    """An MLflow run. `settings` go to `mlflow.start_run`, such as run_name="ace"."""

    def __init__(self, **settings: Any) -> None:
        self._mlflow = _load(*_PACKAGES["mlflow"])
        self._mlflow.start_run(**settings)

    def configure(self, config: Mapping[str, Any]) -> None:
        self._mlflow.log_params(_flat(config))

    def write(self, metrics: Mapping[str, float], axes: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({**metrics, **axes}, step=int(axes["arrival"]))

    def close(self) -> None:
        self._mlflow.end_run()


def check_logger(text: str) -> None:
    """Refuse a name that is no logger's, and one whose package is not installed, before any work.

    Args:
        text: As `open_logger` takes it.
    """
    name, _ = _parsed(text)
    module, package, command = _PACKAGES[name]
    _load(module, package, command)


def open_logger(text: str, run: str) -> Logger:
    """The logger that a person named, for the run of this name: `tensorboard`, `tensorboard(directory='logs')`,
    `wandb(project='mine')` or `mlflow`. TensorBoard's directory holds one for each run.

    Args:
        text: Name and settings of the logger.
        run: Name of the run.
    """
    name, settings = _parsed(text)
    try:
        if name == "tensorboard":
            return TensorBoard(Path(settings.pop("directory", "acefl-logs")) / run, **settings)
        return WandB(**{"name": run, **settings}) if name == "wandb" else MLflow(**{"run_name": run, **settings})
    except TypeError as problem:
        raise InvalidInput(f"logger {text!r}: {problem}") from None


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    name, settings = parse_call(text) or (text, {})
    one_of("logger", name.lower(), tuple(_PACKAGES))
    return name.lower(), settings


def _load(module: str, package: str, command: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InvalidInput(f"{package} is not installed; to log there: {command}") from None


def _grouped(name: str) -> str:
    """With the heading under which dashboards put it: `error/bias`, `participation/influence_gini`, `clients/...`."""
    group = next((group for group, starts in _GROUPS.items() if name.startswith(starts)), "model")
    return f"{group}/{name}"


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings as one level of names: `task.clients`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[above + name] = value
    return flat
