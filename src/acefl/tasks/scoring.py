"""A model's loss and accuracy on data, as training computes them, and a user's own metrics.

The loss is called on batches, never sample by sample: with class weights, with `ignore_index`, with an overlap such as
Dice, a batch's loss is not the mean of its samples' own. Tuning goes by these numbers, so they are the user's loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from acefl.core.metrics import HELD_OUT
from acefl.tasks.base import Evaluation
from acefl.tasks.metrics import Metric, Tally

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Part = tuple[torch.Tensor, torch.Tensor]  # outputs and their targets

_IGNORED = -100  # torch's default for ignore_index
_LANES = 16  # numbers a processor takes at once: of fewer classes torch takes one after the other, a column fills them


@dataclass(frozen=True)
class Samples:
    """Data to score a model on, in groups (clients, say) that lie one after another."""

    inputs: Any
    targets: torch.Tensor
    sizes: Sequence[int]
    averages: bool  # whether here a batch's loss is the mean of its samples' own

    @functools.cached_property
    def groups(self) -> Groups:
        sizes = torch.tensor(self.sizes, device=self.targets.device)
        return Groups(torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes), sizes)


@dataclass(frozen=True)
class Groups:
    """Which group each sample is of, and how many each group has."""

    owner: torch.Tensor
    sizes: torch.Tensor

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Of every group, in double precision."""
        totals = torch.zeros(len(self.sizes), dtype=torch.float64, device=values.device)
        return (totals.index_add_(0, self.owner, values.double()) / self.sizes).cpu()


@dataclass(frozen=True)
class Scores:
    """Of groups of samples."""

    loss: torch.Tensor
    counts: torch.Tensor  # whether anything counts in the group; its loss is NaN where nothing does
    accuracy: torch.Tensor | None
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)  # the user's; NaN where one means nothing


@dataclass(frozen=True)
class Scored:
    """Of data: its groups, all its samples, and what is known of each."""

    groups: Scores
    loss: float
    accuracy: float | None
    sample_losses: torch.Tensor | None
    hits: torch.Tensor | None
    metrics: dict[str, float] = field(default_factory=dict)  # the user's


class BatchLoss:
    """The user's loss on any number of samples.

    It is called on up to `limit` samples at once; more are cut into even pieces, whose losses are averaged by their
    numbers of samples. A piece in which nothing counts, such as one of padding alone, is left out. A loss that adds up
    over its batch is brought to the size of a training batch, where it is what a minibatch has on average, however
    many samples there are.
    """

    def __init__(self, loss: Loss, *, batch: int, limit: int, sample: Part) -> None:
        self._loss, self._batch, self._limit = _writing_nowhere(loss, *sample), batch, limit
        self._adds_up = adds_up(self._loss, *sample)
        self._elementwise = sample[0].shape == sample[1].shape

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of at most `limit` samples, in one call."""
        value = self._loss(outputs, targets)
        return value * (self._batch / len(targets)) if self._adds_up else value

    def pieces(self, size: int) -> list[int]:
        """Even pieces of so many samples, each small enough for one call."""
        return even_pieces(size, self._limit)

    def of_groups(self, parts: Iterable[Part], sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of groups of these sizes, and whether anything counts in each; outputs come in any parts."""
        totals = torch.zeros(len(sizes), dtype=torch.float64)
        samples = torch.zeros(len(sizes), dtype=torch.float64)
        cut = [(group, piece) for group, size in enumerate(sizes) for piece in self.pieces(size)]
        for (group, size), part in zip(cut, regroup(parts, [size for _, size in cut]), strict=True):
            value = float(self(*part))
            if math.isnan(value) and self.nothing_counts(*part):
                continue
            totals[group] += size * value
            samples[group] += size
        return totals / samples, samples > 0

    def nothing_counts(self, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
        """Whether the loss of these targets is NaN whatever a model says of them, as if all were padding."""
        sound = not targets.is_floating_point() or bool(targets.isfinite().all())
        return sound and bool(self._loss(torch.full_like(outputs, 0.5), targets).isnan())

    def averages(self, targets: torch.Tensor) -> bool:
        """Whether a batch's loss is the mean of its samples' own, by what torch says of its losses.

        It then may be computed sample by sample, for all groups at once.
        """
        loss = self._loss
        if loss is F.cross_entropy:
            return not bool((targets == _IGNORED).any())
        if type(loss) is nn.CrossEntropyLoss:
            ignores = bool((targets == loss.ignore_index).any())
            return loss.reduction == "mean" and loss.weight is None and not ignores
        if type(loss) in (nn.MSELoss, nn.BCEWithLogitsLoss):
            plain = loss.reduction == "mean" and getattr(loss, "weight", None) is None  # type: ignore[attr-defined]
            return plain and self._elementwise
        return loss in (F.mse_loss, F.binary_cross_entropy_with_logits) and self._elementwise

    def of_samples(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Every sample's own loss, of a loss that averages."""
        entropy = self._loss is F.cross_entropy or type(self._loss) is nn.CrossEntropyLoss
        if entropy and outputs.dim() == 2 and are_labels(targets):  # in less time than below
            smoothing = getattr(self._loss, "label_smoothing", 0.0)
            if smoothing == 0.0 and outputs.shape[1] < _LANES and outputs.device.type == "cpu":
                logs = F.log_softmax(outputs.T.contiguous(), 0)
                return logs.gather(0, targets.long().unsqueeze(0)).squeeze(0).neg()
            return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)
        losses: torch.Tensor = vmap(self._loss)(outputs.unsqueeze(1), targets.unsqueeze(1))
        return losses

    @functools.cached_property
    def class_weights(self) -> torch.Tensor | None:
        """The weights by which a mean over samples counts their classes, None where all count the same."""
        weighted = type(self._loss) in (nn.CrossEntropyLoss, nn.NLLLoss)
        if not weighted or self._loss.reduction != "mean" or self._loss.weight is None:  # type: ignore[attr-defined]
            return None
        return self._loss.weight.double().cpu()  # type: ignore[attr-defined, no-any-return]


def _writing_nowhere(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    """The loss, on copies where it writes into what it is given: here these are the stored targets."""
    given = outputs.clone(), targets.clone()
    before = [tensor._version for tensor in given]
    loss(*given)
    if [tensor._version for tensor in given] == before:
        return loss
    return functools.wraps(loss)(lambda outputs, targets: loss(outputs.clone(), targets.clone()))


def adds_up(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Whether the same samples twice have twice the loss: tried, since a loss need not say that it sums."""
    once = loss(outputs, targets)
    twice = loss(torch.cat((outputs, outputs)), torch.cat((targets, targets)))
    doubles = bool(once != 0) and bool(torch.isclose(twice, 2 * once, rtol=1e-4, atol=0.0))
    return doubles or getattr(loss, "reduction", None) == "sum"


def even_pieces(count: int, limit: int) -> list[int]:
    """As few sizes of at most `limit` as add up to `count`, all but the last equal.

    Even, as a batch of one has no batch statistics.
    """
    size = math.ceil(count / math.ceil(count / limit))
    return [min(size, count - start) for start in range(0, count, size)]


def regroup(parts: Iterable[Part], sizes: Iterable[int]) -> Iterator[Part]:
    """Outputs and targets cut anew into these sizes, holding no more of them than that takes."""
    coming = iter(parts)
    outputs, targets = next(coming)
    for size in sizes:
        while len(targets) < size:
            more = next(coming)
            outputs, targets = torch.cat((outputs, more[0])), torch.cat((targets, more[1]))
        yield outputs[:size], targets[:size]
        outputs, targets = outputs[size:], targets[size:]


def are_labels(targets: torch.Tensor) -> bool:
    """Whether each sample has one class."""
    return targets.dim() == 1 and not targets.is_floating_point()


def hits(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """Which samples are classified right, where that means something: a single number per sample names no class."""
    classes = outputs.dim() == 2 and outputs.shape[1] > 1 and are_labels(targets)
    return (outputs.argmax(1) == targets).float() if classes else None


def score(
    loss: BatchLoss,
    parts: Iterable[Part],
    data: Samples,
    metrics: Mapping[str, Metric] | None = None,
    *,
    of: str = "client {}",
    overall: bool = False,
) -> Scored:
    """Loss, accuracy and metrics of every group and overall, from the model's outputs in any parts.

    of: what a group is called. overall: whether to have the metrics of all groups together too.
    """
    right: list[torch.Tensor] = []
    tally = Tally(metrics or {}, data.sizes, of, overall=overall)

    def noted() -> Iterator[Part]:
        for outputs, targets in parts:
            own = hits(outputs, targets)
            if own is not None:
                right.append(own)
            tally.add(outputs, targets)
            yield outputs, targets

    losses = None
    if data.averages:
        losses = torch.cat([loss.of_samples(*part) for part in noted()])
        of_groups, total = data.groups.mean(losses), float(losses.mean())
        counts = torch.ones(len(data.sizes), dtype=torch.bool)
    else:
        of_groups, counts = loss.of_groups(noted(), data.sizes)
        weights = torch.tensor(data.sizes, dtype=torch.float64)[counts]
        total = float((of_groups[counts] * weights).sum() / weights.sum())
    accurate = torch.cat(right) if right else None
    accuracy = data.groups.mean(accurate) if accurate is not None else None
    return Scored(
        Scores(of_groups, counts, accuracy, tally.groups()),
        total,
        float(accurate.mean()) if accurate is not None else None,
        losses,
        accurate,
        tally.overall(),
    )


def evaluation(
    own: Scored, test: Scored | None, held_out: Scores | None, metrics: Mapping[str, Metric], penalty: float
) -> Evaluation:
    """What is known of a model, from its scores on clients' own data, on a test set and on clients' held-out data.

    penalty: what the loss has beside the data's, added to the clients' own.
    """
    overall = test or own
    client_loss, client_accuracy = own.groups.loss + penalty, own.groups.accuracy
    found = {"loss": overall.loss, "client_loss": float(client_loss[own.groups.counts].mean())}
    if overall.accuracy is not None:
        found["accuracy"] = overall.accuracy
    if held_out is not None:
        found[f"{HELD_OUT}client_loss"] = float(held_out.loss[held_out.counts].mean())
    if held_out is not None and held_out.accuracy is not None:
        found[f"{HELD_OUT}client_accuracy"] = _known_mean(held_out.accuracy)
    of_clients = dict(own.groups.metrics)
    of_clients |= {f"{HELD_OUT}{name}": values for name, values in (held_out.metrics if held_out else {}).items()}
    for name in metrics:
        found |= {name: overall.metrics[name], f"client_{name}": _known_mean(own.groups.metrics[name])}
        if f"{HELD_OUT}{name}" in of_clients:
            found[f"{HELD_OUT}client_{name}"] = _known_mean(of_clients[f"{HELD_OUT}{name}"])
    return Evaluation(
        found,
        client_loss,
        client_accuracy,
        held_out.loss if held_out is not None else None,
        held_out.accuracy if held_out is not None else None,
        client_metrics=of_clients,
        better={name: metric.better for name, metric in metrics.items()},
    )


def _known_mean(values: torch.Tensor) -> float:
    """Of those who have a score."""
    return float(values[~values.isnan()].mean())


class LabelMix:
    """A test set as each client would meet it: every class by that client's share of it.

    A class that the test set lacks is left out, and the client's other shares grow to make up for it. A client that has
    no class in common with the test set has no score: NaN. A mean loss over samples that counts some classes more, as
    class weights do, counts them so here.
    """

    def __init__(self, targets: torch.Tensor, sizes: Sequence[int], test: torch.Tensor) -> None:
        device = test.device
        targets, test = targets.cpu(), test.cpu()
        self._classes, place = test.unique(return_inverse=True)
        self._by_class = Groups(place.to(device), torch.bincount(place).to(device))
        self._order = place.argsort(stable=True).to(device)  # test samples by class
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        column = torch.searchsorted(self._classes, targets).clamp(max=len(self._classes) - 1)
        known = self._classes[column] == targets
        cells = owner[known] * len(self._classes) + column[known]
        counts = torch.bincount(cells, minlength=len(sizes) * len(self._classes))
        self._counts = counts.view(len(sizes), len(self._classes)).double()

    def scores(self, loss: BatchLoss, parts: Sequence[Part], test: Scored) -> Scores | None:
        """Every client's, from what the model says of the test set and what was found of it; None without accuracy."""
        if test.hits is None:
            return None
        accuracy = _mix(self._by_class.mean(test.hits), self._counts)
        if test.sample_losses is not None:
            of_classes = self._by_class.mean(test.sample_losses)
            counted = torch.ones(len(self._classes), dtype=torch.bool)
        else:
            outputs, targets = (torch.cat(of_all)[self._order] for of_all in zip(*parts, strict=True))
            of_classes, counted = loss.of_groups([(outputs, targets)], self._by_class.sizes.tolist())
        counts, weights = self._counts[:, counted], loss.class_weights
        if weights is not None:
            counts = counts * weights[self._classes[counted]]
        return Scores(_mix(of_classes[counted], counts), counts.sum(1) > 0, accuracy)


def _mix(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    absent = torch.zeros(()).double()
    return torch.where(counts > 0, counts * values, absent).sum(1) / counts.sum(1)
