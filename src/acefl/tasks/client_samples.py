"""All clients' data on one device, one client after another, and minibatches drawn from them.

Data are put there once, so that a minibatch is a gather. What is drawn depends on a key alone, never on what was drawn
before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.tasks.client_data import join
from acefl.tasks.compute import Batch

if TYPE_CHECKING:
    from acefl.tasks.minibatches import Minibatches

Augment = Callable[[Any, torch.Tensor], Any]


class ClientSamples:
    """The samples of all clients.

    Args:
        pairs: Inputs and targets of each client.
        device: Where to put them.
        batch: Samples per minibatch, drawn with replacement.
        augment: Changes minibatches as they are drawn: see `TorchTask`.
    """

    def __init__(
        self, pairs: Sequence[tuple[Any, torch.Tensor]], device: torch.device, batch: int, augment: Augment | None
    ) -> None:
        self.sizes = [len(targets) for _, targets in pairs]
        for client, count in enumerate(self.sizes):
            require(count >= 1, f"client {client} has no data; allowed: at least one sample each")
        self.device, self._batch, self._augment = device, batch, augment
        self.inputs, self.targets = join(pairs, device)
        self.counts = torch.tensor(self.sizes, device=device)
        self.offsets = self.counts.cumsum(0) - self.counts
        self.owner = torch.repeat_interleave(torch.arange(len(pairs), device=device), self.counts)
        self._places = (self.counts.numpy(), self.offsets.numpy()) if device.type == "cpu" else None

    def first_minibatch(self) -> tuple[Batch, torch.Tensor]:
        """Something to try a model on."""
        inputs, targets = self.draw([0], [0])
        return tree_map(lambda t: t[0], inputs), targets[0]

    def minibatch_of_all(self) -> tuple[Batch, torch.Tensor]:
        """A minibatch of samples from all over the data."""
        count = min(max(2, self._batch), len(self.owner))
        rows = torch.linspace(0, len(self.owner) - 1, count, dtype=torch.float64).long().to(self.device)
        inputs, targets = self._pick(rows.unsqueeze(0), [0])
        return tree_map(lambda t: t[0], inputs), targets[0]

    def first_of_each(self, count: int) -> tuple[Batch, torch.Tensor, list[int]]:
        """So many samples of each client, or all it has: inputs, targets, and how many these are."""
        place = torch.arange(len(self.owner), device=self.device) - self.offsets[self.owner]
        rows = torch.nonzero(place < count).squeeze(1)
        sizes = [min(count, own) for own in self.sizes]
        return tree_map(lambda t: t[rows], self.inputs), self.targets[rows], sizes

    @contextlib.contextmanager
    def with_targets(self, targets: torch.Tensor) -> Iterator[None]:
        """In here, the samples have other targets."""
        true, self.targets = self.targets, targets
        try:
            yield
        finally:
            self.targets = true

    def draw(self, clients: list[int], keys: list[int], steps: int = 1) -> tuple[Batch, torch.Tensor]:
        """A minibatch (or one for each of several steps) per client, from its key alone."""
        if self._places is None:
            signed = torch.tensor([keyed.signed(k) for k in keys], device=self.device)
            return self.gather(torch.tensor(clients, device=self.device), signed, steps)
        who = np.array(clients)
        counts, offsets = self._places
        rows = keyed.choose_here(keys, steps * self._batch, counts[who])
        rows += offsets[who][:, None]
        return self._pick(torch.from_numpy(rows), keys)

    def draw_in_one_call(self, clients: list[int], keys: list[int], steps: int = 1) -> tuple[Batch, torch.Tensor]:
        """`draw`, the same samples, at a fraction of what its calls cost."""
        if self._minibatches is None or not isinstance(self.inputs, torch.Tensor):
            return self.draw(clients, keys, steps)
        return self._minibatches.draw(self.inputs, self.targets, clients, keys, steps * self._batch)

    @functools.cached_property
    def _minibatches(self) -> Minibatches | None:
        """None where samples are changed as they are drawn, or numba is missing."""
        if self._places is None or self._augment is not None:
            return None
        try:
            from acefl.tasks.minibatches import Minibatches
        except ImportError:  # numba is missing, or refuses this numpy
            return None
        return Minibatches(*self._places)

    def gather(self, clients: torch.Tensor, keys: torch.Tensor, steps: int = 1) -> tuple[Batch, torch.Tensor]:
        """`draw` of tensors on the device, by operations that a CUDA graph can capture."""
        rows = keyed.choose(keys, steps * self._batch, self.counts[clients]) + self.offsets[clients].unsqueeze(1)
        return self._pick(rows, keys)

    def _pick(self, rows: torch.Tensor, keys: keyed.Keys) -> tuple[Batch, torch.Tensor]:
        """The samples with these numbers, changed as `augment` changes minibatches."""
        flat = rows.reshape(-1)

        def picked(t: torch.Tensor) -> torch.Tensor:  # as t[rows] does, in half the time for few rows
            return t.index_select(0, flat).view(*rows.shape, *t.shape[1:])

        targets = picked(self.targets)
        inputs = picked(self.inputs) if isinstance(self.inputs, torch.Tensor) else tree_map(picked, self.inputs)
        if self._augment is not None:
            if not isinstance(keys, torch.Tensor):
                keys = torch.tensor([keyed.signed(k) for k in keys], device=self.device)
            inputs = self._augment(inputs, keys)
        return inputs, targets
