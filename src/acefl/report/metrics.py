"""What the recorded numbers mean: their names, which way is better, and how to write them down."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acefl.core.metrics import HELD_OUT, LARGER, Better, base, direction
from acefl.report.statistics import same_seed

if TYPE_CHECKING:
    from acefl.report.recorded import Comparison


@dataclass(frozen=True)
class Metric:
    """One number a task is judged by."""

    key: str  # its name in metrics.jsonl and summary.json
    heading: str  # above a column of a table
    meaning: str  # for somebody who has not read the paper
    verbs: tuple[str, str]  # what one method, or several, do in a headline; {} is the number
    higher_is_better: bool = False
    log: bool = False  # spans orders of magnitude, so shown on a log scale
    on_axis: str = ""  # in place of the heading, beside an axis of a figure

    @property
    def axis(self) -> str:
        """What stands beside an axis of a figure."""
        return self.on_axis or self.heading

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

    def scores_by_seed(self, found: Mapping[str, Mapping[int, float]]) -> dict[str, list[float]]:
        """`scores` of every method, on the seeds that all of them have."""
        rows = same_seed(*found.values())
        return {method: self.scores(row[place] for row in rows) for place, method in enumerate(found)}


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    "share of the task's test data that the model gets right",
    ("reaches {} accuracy", "reach {} accuracy"),
    higher_is_better=True,
)
_NOT_TRAINED_ON = "on data it does not train on (its own test data, or the test set by its share of each label)"
HELDOUT_SLOW_ACCURACY = Metric(
    "heldout_slow_accuracy",
    "slow-fifth held-out accuracy",
    f"mean accuracy of the slowest fifth of clients, each {_NOT_TRAINED_ON}",
    ("serves the slowest fifth of clients at {} accuracy", "serve the slowest fifth of clients at {} accuracy"),
    higher_is_better=True,
)
HELDOUT_FAST_ACCURACY = Metric(
    "heldout_fast_accuracy",
    "fast-fifth held-out accuracy",
    f"mean accuracy of the fastest fifth of clients, each {_NOT_TRAINED_ON}",
    ("serves the fastest fifth of clients at {} accuracy", "serve the fastest fifth of clients at {} accuracy"),
    higher_is_better=True,
)
HELDOUT_CLIENT_LOSS = Metric(
    "heldout_client_loss",
    "client-average held-out loss",
    f"mean over clients of each one's loss {_NOT_TRAINED_ON}, every client counting the same",
    ("ends at a client-average held-out loss of {}", "end at a client-average held-out loss of {}"),
)
SLOW_ACCURACY = Metric(
    "slow_accuracy",
    "slow-fifth training accuracy",
    "mean accuracy of the slowest fifth of clients, each on the data it trains on",
    ("fits the slowest fifth of clients at {} training accuracy", "fit the slowest fifth at {} training accuracy"),
    higher_is_better=True,
)
FAST_ACCURACY = Metric(
    "fast_accuracy",
    "fast-fifth training accuracy",
    "mean accuracy of the fastest fifth of clients, each on the data it trains on",
    ("fits the fastest fifth of clients at {} training accuracy", "fit the fastest fifth at {} training accuracy"),
    higher_is_better=True,
)
CLIENT_LOSS = Metric(
    "client_loss",
    "client-average loss",
    "mean over clients of each one's loss on the data it trains on, every client counting the same",
    ("ends at a client-average loss of {}", "end at a client-average loss of {}"),
)
LOSS = Metric(
    "loss",
    "loss",
    "the task's loss",
    ("ends at a loss of {}", "end at a loss of {}"),
)
GAP = Metric(
    "gap",
    "optimality gap",
    "how far the objective is above its minimum, known exactly for this task",
    ("ends at an optimality gap of {}", "end at an optimality gap of {}"),
    log=True,
    on_axis="optimality gap F(w) − F(w*)",
)
GRAD_NORM = Metric(
    "grad_norm",
    "gradient norm",
    "norm of the exact gradient, known for this task",
    ("ends at a gradient norm of {}", "end at a gradient norm of {}"),
    log=True,
    on_axis="norm of the true gradient",
)

_COLUMNS = (HELDOUT_SLOW_ACCURACY, ACCURACY, CLIENT_LOSS, SLOW_ACCURACY, GAP, GRAD_NORM)
_CURVES = (HELDOUT_SLOW_ACCURACY, ACCURACY, GAP, GRAD_NORM)
_LOSSES = (CLIENT_LOSS, LOSS)
EVERY = (
    HELDOUT_SLOW_ACCURACY,
    HELDOUT_FAST_ACCURACY,
    ACCURACY,
    HELDOUT_CLIENT_LOSS,
    CLIENT_LOSS,
    SLOW_ACCURACY,
    FAST_ACCURACY,
    LOSS,
    GAP,
    GRAD_NORM,
)
_BY_IMPORTANCE = (HELDOUT_SLOW_ACCURACY, SLOW_ACCURACY, ACCURACY, GAP, CLIENT_LOSS, GRAD_NORM, LOSS)
_HELD_OUT = {"client_loss": "heldout_client_loss", "slow_accuracy": "heldout_slow_accuracy"}
_WORDS = {  # of whom a score is: in a heading, and in a sentence
    "": ("", "{} of the task's test data"),
    "client_": ("client-average ", "mean over clients of each one's {}, every client counting the same"),
    "slow_": ("slow-fifth ", "mean {} of the slowest fifth of clients"),
    "fast_": ("fast-fifth ", "mean {} of the fastest fifth of clients"),
    "worst_": ("worst client's ", "{} of the client that is served worst"),
}
TIME_TO_TARGET = "time_to_target"


def by_key(key: str, better: Better | None = None) -> Metric:
    """A metric by its name in the record; others than acefl's own are described by what their name is made of."""
    return next((metric for metric in EVERY if metric.key == key), None) or _described(key, better or {})


def _described(key: str, better: Better) -> Metric:
    name, held = base(key), key.startswith(HELD_OUT)
    whose = key.removeprefix(HELD_OUT).removesuffix(name)
    before, meaning = _WORDS.get(whose, _WORDS[""])
    data = "held-out " if held else "training " if whose in ("slow_", "fast_", "worst_") else ""
    on = f", each {_NOT_TRAINED_ON}" if held else ", each on the data it trains on" if whose else ""
    heading = f"{before}{data}{name}"
    verbs = (f"ends at {heading} {{}}", f"end at {heading} {{}}")
    larger = direction(key, better) == LARGER
    return Metric(key, heading, meaning.format(name) + on, verbs, higher_is_better=larger)


def time_to_target(words: str) -> Metric:
    """How long it took to reach a target, which `words` names: `accuracy ≥ 0.9`."""
    heading = f"time to {words}"
    meaning = (
        f"when an evaluation first had {words}, the mean over the seeds that got there; nothing between is guessed"
    )
    return Metric(TIME_TO_TARGET, heading, meaning, ("reaches it after {}", "reach it after {}"))


def known(recorded: Container[str], better: Better) -> list[Metric]:
    """What people are shown of these names: acefl's own metrics, then the others, held-out scores first."""
    return [metric for metric in EVERY if metric.key in recorded] + [
        by_key(key, better) for name in better for key in _of_own(name) if key in recorded
    ]


def _of_own(name: str) -> tuple[str, ...]:
    return (f"{HELD_OUT}slow_{name}", name, f"slow_{name}")


def held_out(key: str) -> str | None:
    """The name of the same metric on data that nobody trained on, None where there is none."""
    return _HELD_OUT.get(key)


def measured(comparison: Comparison, among: tuple[Metric, ...]) -> list[Metric]:
    """Those of the metrics that this comparison recorded."""
    return [metric for metric in among if comparison.measures(metric.key)]


def columns(comparison: Comparison) -> list[Metric]:
    """What the results table shows of this task; what the comparison goes by is there in any case."""
    shown = measured(comparison, _COLUMNS) + _own(comparison, slow=True)
    return _with_chosen(comparison, shown or measured(comparison, _LOSSES))


def _own(comparison: Comparison, *, slow: bool) -> list[Metric]:
    """The task's own metrics; slow: of the slowest clients on the data they train on too."""
    keys = [key for name in comparison.better for key in (_of_own(name) if slow else _of_own(name)[:2])]
    shown = {metric.key for metric in _COLUMNS}
    return [by_key(key, comparison.better) for key in keys if key not in shown and comparison.measures(key)]


def _chosen(comparison: Comparison) -> Metric | None:
    """What the comparison was told to go by."""
    by = comparison.by
    return by_key(by, comparison.better) if by and comparison.measures(by) else None


def _with_chosen(comparison: Comparison, shown: list[Metric]) -> list[Metric]:
    chosen = _chosen(comparison)
    return shown if chosen is None or chosen in shown else [chosen, *shown]


def curves(comparison: Comparison) -> list[Metric]:
    """What is drawn against steps, arrivals and time; the losses only where the task has nothing better.

    Records without held-out scores show the slow clients' accuracy on the data they train on.
    """
    older = (SLOW_ACCURACY,) if not comparison.measures(HELDOUT_SLOW_ACCURACY.key) else ()
    shown = measured(comparison, (*_CURVES[:2], *older, *_CURVES[2:])) + _own(comparison, slow=False)
    return _with_chosen(comparison, shown or measured(comparison, _LOSSES))


def primary(comparison: Comparison) -> Metric | None:
    """The number the comparison is about: what it was told to go by, or how the slow clients fare, or the nearest
    thing the task has."""
    return _chosen(comparison) or next(iter(measured(comparison, _BY_IMPORTANCE)), None)
