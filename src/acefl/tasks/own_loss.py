"""`loss=None`: the loss that a model computes by itself when it is given labels, as those of transformers do.

Usually it is a plain loss of the model's logits. Then that loss is used in its place, so that accuracy, metrics and
batched gradients work as with a loss that a person names. Which one it is, is found by trying: it has to give the same
number. A loss that is none of these is taken from the model at every pass, and nothing but the loss is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from acefl.core.errors import InvalidInput, require

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
IGNORED = -100  # a label that does not count, by torch's convention


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of every token given those before it; labels of -100 (padding, prompts) do not count.

    Args:
        logits: (samples, tokens, vocabulary).
        labels: (samples, tokens): the tokens themselves.
    """
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of a label for every token."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error of one number per sample."""
    return F.mse_loss(outputs.flatten(), targets.flatten())


def mean_of_given(losses: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of a model that gave its loss itself, once for every sample of the batch; NaN where no label counts."""
    return torch.where((targets != IGNORED).any(), losses.mean(), math.nan)


def named_loss(*tried: tuple[Any, torch.Tensor]) -> Loss:
    """The loss that gives what the model gave, each time with these targets; `mean_of_given` where it is none that we
    know."""
    given, targets = tried[0]
    own, logits = getattr(given, "loss", None), getattr(given, "logits", None)
    if not isinstance(own, torch.Tensor):
        raise InvalidInput("loss is None, and the model computes none; allowed: a loss of outputs and targets")
    require(own.dim() == 0, f"the model's own loss has shape {list(own.shape)}; allowed: one number per batch")
    if not isinstance(logits, torch.Tensor) or not math.isfinite(float(own)):
        return mean_of_given
    for loss in _candidates(logits, targets):
        if all(_gives(loss, *one) for one in tried):
            return loss
    return mean_of_given


def _gives(loss: Loss, given: Any, targets: torch.Tensor) -> bool:
    found = loss(given.logits.float(), targets)
    return bool(torch.isclose(found, given.loss.float(), rtol=1e-4, atol=1e-6, equal_nan=True))


def _candidates(logits: torch.Tensor, targets: torch.Tensor) -> list[Loss]:
    """The usual losses that these shapes allow."""
    if targets.is_floating_point():
        alike = logits.shape == targets.shape
        return [nn.BCEWithLogitsLoss(), nn.MSELoss()] if alike else [squared_error] * (logits.numel() == len(targets))
    if logits.dim() == 2 and targets.dim() == 1:
        return [nn.CrossEntropyLoss()]
    if logits.dim() == 3 and logits.shape[:2] == targets.shape:
        return [next_token_loss, token_loss]
    return []
