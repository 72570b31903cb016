"""A user's own metrics of a model's outputs: functions, and objects that are updated such as those of torchmetrics.

A metric is of all of a data set's outputs, or all of a client's, never an average over batches. A plain function is
called once on all of them. An object with `update`, `compute` and `reset` is given them piece by piece, so that a
language model's outputs need not all be held at once.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from acefl.core.errors import InvalidInput, require
from acefl.core.metrics import GROUPS, HELD_OUT, LARGER, PLACE, SMALLER

_NAME = re.compile(r"[A-Za-z][\w.@-]*")
_OF_EVALUATIONS = ("loss", "accuracy", "gap", "grad_norm", "noise", "bias", "delay", "squared_gradient", *PLACE)
_OF_CLIENTS = ("client", "name", "mean_time", "samples", "participation", "last_sent", "uploads")
_PREFIXES = (HELD_OUT, *GROUPS, "unscored_", "influence", "staleness", "probe_", "cos_")
_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
_REGRESSION_FUNCTIONS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)


@dataclass(frozen=True)
class Metric:
    """A number that a model is judged by, and which way it is better.

    Args:
        compute: A function of all outputs and targets, as CPU tensors, that returns one number (NaN where it means
            nothing, such as a recall without positives), or an object with `update(outputs, targets)`, `compute()` and
            `reset()`, such as those of torchmetrics.
        smaller_is_better: Which way; None: as the object's `higher_is_better` says, and else larger is better.
    """

    compute: Any
    smaller_is_better: bool | None = None

    @property
    def better(self) -> str:
        """As a record says it."""
        if self.smaller_is_better is not None:
            return SMALLER if self.smaller_is_better else LARGER
        return SMALLER if getattr(self.compute, "higher_is_better", None) is False else LARGER

    @property
    def is_updated(self) -> bool:
        """Whether it takes outputs piece by piece."""
        return all(callable(getattr(self.compute, method, None)) for method in ("update", "compute", "reset"))


def named_metrics(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """A user's metrics, each with a name that no other column has."""
    require(isinstance(metrics, Mapping), f"metrics is {metrics!r}; allowed: metrics by name, as in {{'f1': f1}}")
    for name in metrics:
        good = isinstance(name, str) and _NAME.fullmatch(name) is not None
        require(good, f"a metric is named {name!r}; allowed: a word such as f1, of letters, digits and . _ @ -")
        taken = name in (*_OF_EVALUATIONS, *_OF_CLIENTS) or name.startswith(_PREFIXES)
        free = f"a name that is no column of acefl's own and starts with none of {', '.join(_PREFIXES)}"
        require(not taken, f"a metric is named {name!r}, as columns of acefl's own are; allowed: {free}")
    return {name: _metric(name, given) for name, given in metrics.items()}


def _metric(name: str, given: Any) -> Metric:
    metric = given if isinstance(given, Metric) else Metric(given)
    allowed = "a function of outputs and targets, a torchmetrics object, or tasks.Metric(one of these)"
    require(
        not isinstance(given, type) and (metric.is_updated or callable(metric.compute)),
        f"metric {name!r} is {given!r}; allowed: {allowed}",
    )
    silent = hasattr(metric.compute, "higher_is_better") and metric.compute.higher_is_better is None
    require(
        metric.smaller_is_better is not None or not silent,
        f"metric {name!r} does not say which way it is better; allowed: tasks.Metric(..., smaller_is_better=False)",
    )
    return metric


def usual(loss: Any, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Metric]:
    """What a task without labels is judged by beside its loss, where its loss says what it is.

    `rmse` and `r2` of a regression; `f1`, over all yes-or-no answers together, of targets that are 0 or 1.
    """
    if outputs.shape[1:] != targets.shape[1:] or not targets.is_floating_point():
        return {}
    if type(loss) in _REGRESSION or loss in _REGRESSION_FUNCTIONS:
        return {"rmse": Metric(RootMeanSquare(), smaller_is_better=True), "r2": Metric(Explained())}
    yes_or_no = type(loss) is nn.BCEWithLogitsLoss or loss is F.binary_cross_entropy_with_logits
    if yes_or_no and bool(((targets == 0) | (targets == 1)).all()):
        return {"f1": Metric(YesOrNoF1())}
    return {}


class Tally:
    """Metrics of groups of samples that lie one after another, and of all of them, as outputs come in.

    of: what a group is called where a metric fails on it.
    """

    def __init__(self, metrics: Mapping[str, Metric], sizes: Sequence[int], of: str, *, overall: bool) -> None:
        self._sizes, self._of, self._group, self._filled = list(sizes), of, 0, 0
        self._groups = {name: _collector(metric) for name, metric in metrics.items()}
        self._all = {name: _collector(metric) for name, metric in metrics.items()} if overall else {}
        self._found: dict[str, list[float]] = {name: [] for name in metrics}

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """The next samples."""
        if not self._groups:
            return
        for name, collector in self._all.items():
            self._guarded(name, "all data", collector, partial(collector.add, outputs, targets))
        start = 0
        while start < len(targets):
            size = min(len(targets) - start, self._sizes[self._group] - self._filled)
            part = slice(start, start + size)
            for name, collector in self._groups.items():
                self._guarded(name, self._where, collector, partial(collector.add, outputs[part], targets[part]))
            start, self._filled = start + size, self._filled + size
            if self._filled == self._sizes[self._group]:
                self._close_group()

    @property
    def _where(self) -> str:
        return self._of.format(self._group)

    def _close_group(self) -> None:
        for name, collector in self._groups.items():
            self._found[name].append(self._value(name, self._where, collector))
        self._group, self._filled = self._group + 1, 0

    def groups(self) -> dict[str, torch.Tensor]:
        """Every group's, in order."""
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in self._found.items()}

    def overall(self) -> dict[str, float]:
        """Of all samples; of a single group, the group's."""
        if self._all:
            return {name: self._value(name, "all data", collector) for name, collector in self._all.items()}
        return {name: values[0] for name, values in self._found.items()} if len(self._sizes) == 1 else {}

    def _value(self, name: str, where: str, collector: _Collector) -> float:
        value = self._guarded(name, where, collector, collector.take)
        collector.clear()
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        try:
            return float(value)
        except (TypeError, ValueError):
            what = f"{type(value).__name__}{f' of shape {tuple(value.shape)}' if hasattr(value, 'shape') else ''}"
            raise InvalidInput(f"metric {name!r} gave a {what} for {where}; allowed: one number") from None

    def _guarded(self, name: str, where: str, collector: _Collector, call: Callable[[], Any]) -> Any:
        """What a metric does with the outputs of a model that has diverged is no fault of the metric: NaN."""
        try:
            return call()
        except Exception as error:  # whatever a user's metric does
            collector.failed = True
            if not collector.finite:
                return math.nan
            said = " ".join(str(error).split()) or type(error).__name__
            allowed = "one number, NaN where there is none"
            raise InvalidInput(
                f"metric {name!r} failed on {where} ({type(error).__name__}: {said}); allowed: {allowed}"
            ) from error


class _Collector(Protocol):
    finite: bool  # whether all outputs were, so far
    failed: bool

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None: ...

    def take(self) -> Any:
        """The metric of what was added."""
        ...

    def clear(self) -> None:
        """Begin anew."""
        ...


def _collector(metric: Metric) -> _Collector:
    return _Updated(metric.compute) if metric.is_updated else _Whole(metric.compute)


class _Whole:
    """All outputs, for a function of them."""

    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        self._compute = compute
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.finite, self.failed = True, False

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._parts.append((outputs.cpu(), targets.cpu()))

    def take(self) -> Any:
        outputs, targets = (torch.cat(of_all) for of_all in zip(*self._parts, strict=True))
        self.finite = bool(outputs.isfinite().all())
        return self._compute(outputs, targets)

    def clear(self) -> None:
        self._parts = []
        self.finite, self.failed = True, False


class _Updated:
    """A copy of an object that is updated: what the user passed stays as it is."""

    def __init__(self, given: Any) -> None:
        self._metric = copy.deepcopy(given)
        self._metric.reset()
        self.finite, self.failed = True, False

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.finite = self.finite and bool(outputs.isfinite().all())
        if self.failed:
            return
        if isinstance(self._metric, nn.Module):
            self._metric.to(outputs.device)
        self._metric.update(outputs, targets)

    def take(self) -> Any:
        return math.nan if self.failed else self._metric.compute()

    def clear(self) -> None:
        self._metric.reset()
        self.finite, self.failed = True, False


class RootMeanSquare:
    """Root of the mean squared error, of all numbers together."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._total += float((outputs.double() - targets.double()).square().sum())
        self._count += targets.numel()

    def compute(self) -> float:
        return math.sqrt(self._total / self._count) if math.isfinite(self._total) else math.nan


class Explained:
    """The share of the targets' variance that a regression explains (R²), the mean over outputs; NaN where one does
    not vary."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._count = 0
        self._mean = self._spread = self._error = torch.zeros((), dtype=torch.float64)

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        said, true = (part.double().reshape(len(targets), -1).cpu() for part in (outputs, targets))
        count, mean = len(true), true.mean(0)
        apart, total = mean - self._mean, self._count + count
        self._spread = self._spread + (true - mean).square().sum(0) + apart**2 * (self._count * count / total)
        self._mean, self._count = self._mean + apart * (count / total), total
        self._error = self._error + (said - true).square().sum(0)

    def compute(self) -> float:
        varies = bool((self._spread > 0).all())
        return float((1 - self._error / self._spread).mean()) if varies else math.nan


class YesOrNoF1:
    """F1 of answers above 0 (a probability above one half), all outputs together; NaN without any yes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._right = self._said = self._true = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        said, true = outputs > 0, targets > 0.5
        self._right += int((said & true).sum())
        self._said, self._true = self._said + int(said.sum()), self._true + int(true.sum())

    def compute(self) -> float:
        return 2 * self._right / (self._said + self._true) if self._said + self._true else math.nan
