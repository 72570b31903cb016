"""Local work of several steps, made of the same gradients that a single step is made of.

A client starts from the model it was sent, takes some optimizer steps on minibatches of its own data, and sends what
the server is to subtract. The task's own strategy computes the gradients (many models in one call, a replayed CUDA
graph), so local work costs one gradient per step and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.settings import build, label, parse_call

OPTIMIZERS = ("sgd", "adamw")
SENDS = ("difference", "mean")
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # torch's defaults for AdamW
_STEP_STREAM = 31

Gradients = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]  # models, clients, keys -> gradients


@dataclass(frozen=True)
class LocalWork:
    """A fresh optimizer at every visit, then `steps` minibatches, or `epochs` times as many as hold the client's data.

    send: `difference` is w_start - w_end. `mean` is the mean of the gradients along the way, as in the public code of
    the paper's authors. One AdamW step sends lr * (g / (|g| + 1e-8) + weight_decay * w): every coordinate moves by
    about lr, whatever the size of the gradient. One SGD step with momentum sends lr * g: a fresh momentum adds nothing.
    An epoch's minibatches are drawn with replacement, as every minibatch is.

    Args:
        optimizer: `sgd` or `adamw`.
        lr: Of the local steps.
        steps: Minibatches per visit.
        epochs: Above 0: in place of `steps`.
        momentum: Of `sgd`.
        weight_decay: At least 0.
        send: `difference` or `mean`.
    """

    optimizer: str = "sgd"
    lr: float = 0.01
    steps: int = 1
    epochs: int = 0  # above 0: in place of steps
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0
    send: str = "difference"

    def __post_init__(self) -> None:
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("send", self.send, SENDS)
        require(math.isfinite(self.lr) and self.lr > 0, f"lr is {self.lr}; allowed: a finite number above 0")
        require(self.steps >= 1, f"steps is {self.steps}; allowed: at least 1")
        require(self.epochs >= 0, f"epochs is {self.epochs}; allowed: at least 0")
        require(0 <= self.momentum < 1, f"momentum is {self.momentum}; allowed: from 0 to below 1")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}; allowed: at least 0")
        plain = self.optimizer == "sgd" or not self.momentum
        require(plain, f"momentum is {self.momentum}; allowed with adamw: 0, which has its own")

    @classmethod
    def parse(cls, text: str) -> LocalWork:
        """From what a person writes: `sgd(epochs=2, lr=0.01, momentum=0.9, send='mean')` or `adamw(lr=5e-4)`."""
        called = parse_call(text)
        if called is None or called[0] not in OPTIMIZERS:
            raise InvalidInput(f"local is {text!r}; allowed: sgd or adamw with settings, as in 'sgd(steps=5, lr=0.05)'")
        name, settings = called
        return build(cls, settings, f"local {name}", optimizer=name)

    def text(self) -> str:
        """As a person writes it: what `parse` takes."""
        settings = label(self).replace(f"optimizer={self.optimizer!r}", "").partition("(")[2].strip("(), ")
        return f"{self.optimizer}({settings})"

    def count(self, samples: int, batch: int) -> int:
        """How many steps a client with so many samples takes."""
        return self.epochs * math.ceil(samples / batch) if self.epochs else self.steps

    def updates(
        self, gradients: Gradients, models: torch.Tensor, clients: list[int], keys: list[int], counts: Sequence[int]
    ) -> torch.Tensor:
        """Row k: what clients[k] sends after counts[k] steps from models[k]."""
        now = models.clone()
        total = torch.zeros_like(models) if self.send == "mean" else None
        first = torch.zeros_like(models)  # momentum
        second = torch.zeros_like(models) if self.optimizer == "adamw" else None
        for step in range(max(counts)):
            rows = [k for k, count in enumerate(counts) if step < count]
            at: list[int] | slice = slice(None) if len(rows) == len(counts) else rows
            own_keys = [keys[k] if step == 0 else keyed.key(keys[k], _STEP_STREAM, step) for k in rows]
            g = gradients(now[at], [clients[k] for k in rows], own_keys)
            if total is not None:
                total[at] += g
            if second is None:
                g = g + self.weight_decay * now[at] if self.weight_decay else g
                first[at] = g = first[at] * self.momentum + g
                now[at] -= self.lr * g
            else:
                first[at] = first[at] * _BETA1 + (1 - _BETA1) * g
                second[at] = second[at] * _BETA2 + (1 - _BETA2) * g * g
                mean, size = first[at] / (1 - _BETA1 ** (step + 1)), second[at] / (1 - _BETA2 ** (step + 1))
                now[at] -= self.lr * (mean / (size.sqrt() + _EPSILON) + self.weight_decay * now[at])
        if total is None:
            return models - now
        return total / torch.tensor(counts, device=models.device).unsqueeze(1)


@dataclass(frozen=True)
class LocalSteps:
    """Local work with any torch optimizer, eagerly; the client sends w_start - w_end. For SGD and AdamW on a GPU
    `LocalWork` does the same many times faster.

    `optimizer` makes a fresh torch optimizer from parameters, e.g. `functools.partial(torch.optim.SGD, lr=0.05)`.

    Args:
        steps: Minibatches per visit.
        optimizer: Makes the optimizer of a visit.
    """

    steps: int
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"steps is {self.steps}; allowed: at least 1")


Local = LocalWork | LocalSteps | None  # None: one gradient


def local_work(given: str | Local) -> Local:
    """What a client does per upload, from what a person gave: words are parsed."""
    if isinstance(given, str):
        return LocalWork.parse(given)
    known = given is None or isinstance(given, LocalWork | LocalSteps)
    require(known, f"local is {given!r}; allowed: None, LocalWork, LocalSteps or text such as 'sgd(lr=0.1, epochs=2)'")
    return given


def local_text(given: str | Local) -> str | None:
    """For the record of a task that a name and settings make: text from which the same work is made again."""
    if given is None or isinstance(given, str):
        return given
    return given.text() if isinstance(given, LocalWork) else repr(given)


def client_work(local: Local, batch: int) -> str:
    """One sentence on what a client does for an upload."""
    of = f"minibatch{'es' if local is not None else ''} of {batch} of its samples"
    if local is None:
        return f"A client sends the gradient of one {of}."
    if isinstance(local, LocalSteps):
        called, settings = local.optimizer, ""
        if isinstance(called, partial):
            settings = ", ".join(f"{name} {value}" for name, value in called.keywords.items())
            called = called.func
        optimizer = getattr(called, "__name__", "a torch optimizer") + (f" ({settings})" if settings else "")
        return f"A client takes {_counted(local.steps, 'step')} of {optimizer} on {of} and sends {_SENT['difference']}."
    words = {"lr": local.lr, "momentum": local.momentum, "weight decay": local.weight_decay}
    settings = ", ".join(f"{name} {value:g}" for name, value in words.items() if value)
    amount = _counted(local.epochs, "epoch") if local.epochs else _counted(local.steps, "step")
    optimizer = {"sgd": "SGD", "adamw": "AdamW"}[local.optimizer]
    return f"A client takes {amount} of {optimizer} ({settings}) on {of} and sends {_SENT[local.send]}."


_SENT = {
    "difference": "the model it started from minus the one it ended with",
    "mean": "the mean of the gradients along the way",
}


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
