"""Minibatches of several clients in one compiled call: for runs of so many small gradients that loading it pays.

The samples are those that `acefl.core.rng.choose` draws.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from acefl.core import rng as keyed
from acefl.core.kernels.jit import jit

_U = np.uint64
_GOLDEN, _MUL_A, _MUL_B, _POSITIVE = _U(keyed.GOLDEN), _U(keyed.MUL_A), _U(keyed.MUL_B), _U(0x7FFFFFFFFFFFFFFF)
_27, _30, _31 = _U(27), _U(30), _U(31)


class Minibatches:
    """Draws from samples that lie one client after another; whose they are is said by counts and offsets."""

    def __init__(self, counts: keyed.Array, offsets: keyed.Array) -> None:
        self._places = counts, offsets
        self._known: tuple[_Samples, _Samples] | None = None

    def draw(
        self, inputs: torch.Tensor, targets: torch.Tensor, clients: list[int], keys: list[int], size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`size` samples of each client, one for each key."""
        known = self._known
        if known is None or known[0].tensor is not inputs or known[1].tensor is not targets:
            known = self._known = _Samples(inputs), _Samples(targets)
        drawn = [np.empty((len(keys) * size, own.words.shape[1]), own.words.dtype) for own in known]
        _pick(np.array(clients), np.array(keys, np.uint64), *self._places, known[0].words, known[1].words, *drawn, size)
        first, second = (own.shaped(words, len(keys), size) for own, words in zip(known, drawn, strict=True))
        return first, second


class _Samples:
    """A tensor, and its rows as integers of 64 bits where that is possible, else as bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        own = tensor.detach().contiguous().view(len(tensor), -1).view(torch.uint8).numpy()
        self.words = own.view(np.int64) if own.shape[1] % 8 == 0 else own

    def shaped(self, words: keyed.Array, minibatches: int, size: int) -> torch.Tensor:
        """Rows such as this tensor's, from their words."""
        return torch.from_numpy(words).view(self.tensor.dtype).view(minibatches, size, *self.tensor.shape[1:])


@jit
def _pick(clients, keys, counts, offsets, inputs, targets, found, wanted, size) -> Any:
    for k in range(len(keys)):
        count, offset = _U(counts[clients[k]]), offsets[clients[k]]
        for place in range(size):
            x = keys[k] + _U(place + 1) * _GOLDEN
            x = (x ^ (x >> _30)) * _MUL_A
            x = (x ^ (x >> _27)) * _MUL_B
            row = offset + np.int64(((x ^ (x >> _31)) & _POSITIVE) % count)
            found[k * size + place, :] = inputs[row, :]
            wanted[k * size + place, :] = targets[row, :]
