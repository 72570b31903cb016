"""What the recorded numbers mean: their names, which way is better, and how to write them down."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acefl.report.recorded import Comparison


@dataclass(frozen=True)
class Metric:
    """One number a task is judged by."""

    key: str  # its name in metrics.jsonl and summary.json
    heading: str  # above a column of a table
    axis: str  # beside an axis of a figure
    meaning: str  # for somebody who has not read the paper
    verbs: tuple[str, str]  # what one method, or several, do in a headline; {} is the number
    higher_is_better: bool = False
    log: bool = False  # spans orders of magnitude, so shown on a log scale

    def write(self, mean: float, std: float = math.nan, digits: int = 3) -> str:
        """The number with as many digits as a table of it needs, and its spread, where known, to the same place."""
        if not math.isfinite(mean):
            return "–"
        power = math.floor(math.log10(abs(mean))) if mean and not self.higher_is_better else -1
        if self.log and not -3 <= power <= 4:
            scaled, spread = (f"{value / 10.0**power:.{digits - 1}f}" for value in (mean, std))
            return f"({scaled} ± {spread})e{power:+03d}" if math.isfinite(std) else f"{scaled}e{power:+03d}"
        places = max(0, digits - 1 - power)
        return f"{mean:,.{places}f} ± {std:,.{places}f}" if math.isfinite(std) else f"{mean:,.{places}f}"

    def write_short(self, mean: float) -> str:
        """The number as one would say it."""
        return self.write(mean, digits=2)

    def scores(self, values: Iterable[float | None]) -> list[float]:
        """What methods are compared by: smaller is better, logs of what spans orders of magnitude, infinity for NaN."""
        known = [math.nan if value is None else float(value) for value in values]
        if self.log:
            known = [math.log(max(value, 1e-300)) if not math.isnan(value) else math.nan for value in known]
        sign = -1.0 if self.higher_is_better else 1.0
        return [math.inf if math.isnan(value) else sign * value for value in known]


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    "accuracy",
    "share of the task's test data that the model gets right",
    ("reaches {} accuracy", "reach {} accuracy"),
    higher_is_better=True,
)
SLOW_ACCURACY = Metric(
    "slow_accuracy",
    "slow-fifth accuracy",
    "slow-fifth accuracy",
    "mean accuracy of the slowest fifth of clients, each on its own data",
    ("serves the slowest fifth of clients at {} accuracy", "serve the slowest fifth of clients at {} accuracy"),
    higher_is_better=True,
)
FAST_ACCURACY = Metric(
    "fast_accuracy",
    "fast-fifth accuracy",
    "fast-fifth accuracy",
    "mean accuracy of the fastest fifth of clients, each on its own data",
    ("serves the fastest fifth of clients at {} accuracy", "serve the fastest fifth of clients at {} accuracy"),
    higher_is_better=True,
)
CLIENT_LOSS = Metric(
    "client_loss",
    "client-average loss",
    "client-average loss",
    "mean over clients of each one's loss on its own data, every client counting the same",
    ("ends at a client-average loss of {}", "end at a client-average loss of {}"),
)
LOSS = Metric(
    "loss",
    "loss",
    "loss",
    "the task's loss",
    ("ends at a loss of {}", "end at a loss of {}"),
)
GAP = Metric(
    "gap",
    "optimality gap",
    "optimality gap F(w) − F(w*)",
    "how far the objective is above its minimum, known exactly for this task",
    ("ends at an optimality gap of {}", "end at an optimality gap of {}"),
    log=True,
)
GRAD_NORM = Metric(
    "grad_norm",
    "gradient norm",
    "norm of the true gradient",
    "norm of the exact gradient, known for this task",
    ("ends at a gradient norm of {}", "end at a gradient norm of {}"),
    log=True,
)

HELDOUT_CLIENT_LOSS = Metric(
    "heldout_client_loss",
    "held-out client loss",
    "held-out client-average loss",
    "mean over clients of each one's loss on data like its own that nobody trained on, every client counting the same",
    ("ends at a held-out client-average loss of {}", "end at a held-out client-average loss of {}"),
)
HELDOUT_SLOW_ACCURACY = Metric(
    "heldout_slow_accuracy",
    "held-out slow-fifth accuracy",
    "held-out slow-fifth accuracy",
    "mean accuracy of the slowest fifth of clients, each on data like its own that nobody trained on",
    (
        "serves the slowest fifth of clients at {} accuracy on held-out data",
        "serve the slowest fifth of clients at {} accuracy on held-out data",
    ),
    higher_is_better=True,
)
_HELD_OUT = {"client_loss": HELDOUT_CLIENT_LOSS, "slow_accuracy": HELDOUT_SLOW_ACCURACY}

_COLUMNS = (ACCURACY, CLIENT_LOSS, SLOW_ACCURACY, GAP, GRAD_NORM)
_CURVES = (ACCURACY, SLOW_ACCURACY, GAP, GRAD_NORM)
_LOSSES = (CLIENT_LOSS, LOSS)
EVERY = (ACCURACY, CLIENT_LOSS, SLOW_ACCURACY, FAST_ACCURACY, LOSS, GAP, GRAD_NORM, *_HELD_OUT.values())
_BY_IMPORTANCE = (SLOW_ACCURACY, ACCURACY, GAP, CLIENT_LOSS, GRAD_NORM, LOSS)


def by_key(key: str) -> Metric:
    """A metric by its name in the record; what a person's own task is judged by may be one that is not known here."""
    return next((metric for metric in EVERY if metric.key == key), Metric(key, key, key, key, ("{}", "{}")))


def held_out(key: str) -> str | None:
    """The name of the same metric on data that nobody trained on, None where there is none."""
    found = _HELD_OUT.get(key)
    return None if found is None else found.key


def measured(comparison: Comparison, among: tuple[Metric, ...]) -> list[Metric]:
    """Those of the metrics that this comparison recorded, on held-out data where it has them."""
    preferred = [_HELD_OUT[m.key] if m.key in _HELD_OUT and _held_out_by(comparison, m) else m for m in among]
    return [metric for metric in preferred if comparison.measures(metric.key)]


def _held_out_by(comparison: Comparison, metric: Metric) -> bool:
    return comparison.measures(_HELD_OUT[metric.key].key)


def columns(comparison: Comparison) -> list[Metric]:
    """What the results table shows of this task."""
    return measured(comparison, _COLUMNS) or measured(comparison, _LOSSES)


def curves(comparison: Comparison) -> list[Metric]:
    """What is drawn against steps, arrivals and time; the losses only where the task has nothing better."""
    return measured(comparison, _CURVES) or measured(comparison, _LOSSES)


def primary(comparison: Comparison) -> Metric | None:
    """The number the comparison is about: how the slow clients fare, or the nearest thing the task has."""
    return next(iter(measured(comparison, _BY_IMPORTANCE)), None)
