"""Exact gradients: of clients' losses over all their data, as evaluation defines them, and of the mean over clients."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

from acefl.core.types import Vector
from acefl.tasks.client_samples import ClientSamples
from acefl.tasks.compute import OneByOne, Together
from acefl.tasks.model_loss import ModelLoss
from acefl.tasks.scoring import BatchLoss


class ExactGradients:
    """Of a model whose forward pass is not random and does not mix samples.

    Args:
        model: Module and loss.
        data: All clients' samples.
        batch_loss: The loss as evaluation calls it.
        ridge: Weight of half the squared norm of the model, added to the loss.
        piece: Samples of a client that are computed together, so that clients with few and with many share one call.
        at_once: Pieces per call.
        stacked: Whether pieces of several models go through one call.
        evaluation_batch: Samples per call where all are at one model.
    """

    def __init__(
        self,
        model: ModelLoss,
        data: ClientSamples,
        batch_loss: BatchLoss,
        *,
        ridge: float,
        piece: int,
        at_once: int,
        stacked: bool,
        evaluation_batch: int,
    ) -> None:
        self._model, self._data, self._batch_loss, self._ridge = model, data, batch_loss, ridge
        self._piece, self._at_once, self._stacked, self._evaluation_batch = piece, at_once, stacked, evaluation_batch

    def of_clients(self, models: torch.Tensor, clients: list[int]) -> torch.Tensor:
        """Row k: the gradient at models[k] of clients[k]'s loss."""
        if not self._averages:
            pairs = zip(models, clients, strict=True)
            return torch.stack([self._of_all_together(model, client) for model, client in pairs])
        data, limit = self._data, self._at_once
        owner, rows, weights = self._pieces(clients)
        gradients = torch.zeros_like(models)
        for start in range(0, len(owner), limit):
            part = torch.arange(start, min(start + limit, len(owner)), device=data.device)
            count = len(part)
            if self._stacked and count < limit <= len(owner):  # one size, one trace
                part = torch.cat((part, part[:1].expand(limit - count)))
            batch = (tree_map(lambda t, p=part: t[rows[p]], data.inputs), weights[part])
            of_pieces = self._in_pieces.over(models[owner[part]], batch, data.targets[rows[part]])
            gradients.index_add_(0, owner[part[:count]], of_pieces[:count])
        return gradients.add_(models, alpha=self._ridge) if self._ridge else gradients

    def of_mean(self, model: Vector) -> Vector:
        """The gradient of the mean over clients of each one's loss."""
        data, clients = self._data, len(self._data.sizes)
        if not self._averages:
            return torch.stack([self._of_all_together(model, client) for client in range(clients)]).mean(0)
        gradient = self._ridge * model
        weights = 1.0 / (clients * data.counts[data.owner])
        for start in range(0, len(data.owner), self._evaluation_batch):
            part = slice(start, start + self._evaluation_batch)
            batch = (tree_map(lambda t, p=part: t[p], data.inputs), weights[part])
            gradient += self._weighted_gradient(model, batch, data.targets[part])
        return gradient

    @functools.cached_property
    def _averages(self) -> bool:
        """Whether a client's loss is the mean of its samples' own."""
        return self._batch_loss.averages(self._data.targets)

    def _of_all_together(self, model: Vector, client: int) -> Vector:
        """The gradient of a loss that has to see a client's data together."""
        data = self._data
        self._model.net.vector.copy_(model)
        total, samples, start = torch.zeros_like(model), 0, int(data.offsets[client])
        for size in self._batch_loss.pieces(data.sizes[client]):
            part = slice(start, start + size)
            output = self._model.output(tree_map(lambda t, p=part: t[p], data.inputs), data.targets[part])
            start += size
            if self._batch_loss.nothing_counts(output, data.targets[part]):
                continue
            total += size * self._model.gradient_here(self._batch_loss(output, data.targets[part]))
            samples += size
        return total / max(samples, 1) + self._ridge * model

    def _pieces(self, clients: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The clients' data in pieces: whose they are, their rows, and each sample's weight."""
        device, size = self._data.device, self._piece
        index = torch.tensor(clients, device=device)
        per_client = (self._data.counts[index] + size - 1) // size
        owner = torch.repeat_interleave(torch.arange(len(clients), device=device), per_client)
        number = torch.arange(len(owner), device=device) - (per_client.cumsum(0) - per_client)[owner]
        place = number.unsqueeze(1) * size + torch.arange(size, device=device)
        counts = self._data.counts[index][owner].unsqueeze(1)
        rows = self._data.offsets[index][owner].unsqueeze(1) + place.minimum(counts - 1)
        return owner, rows, (place < counts) / counts

    @functools.cached_property
    def _in_pieces(self) -> Together | OneByOne:
        if self._stacked:
            return Together(self._weighted_loss, self._data.draw)
        return OneByOne(self._weighted_gradient, self._data.draw)

    def _weighted_loss(self, flat: Vector, batch: Any, targets: torch.Tensor) -> torch.Tensor:
        inputs, weights = batch
        outputs = self._model.output(inputs, targets, self._model.net.named(flat))
        return torch.dot(self._batch_loss.of_samples(outputs, targets), weights)

    def _weighted_gradient(self, model: Vector, batch: Any, targets: torch.Tensor) -> Vector:
        inputs, weights = batch
        self._model.net.vector.copy_(model)
        outputs = self._model.output(inputs, targets)
        return self._model.gradient_here(torch.dot(self._batch_loss.of_samples(outputs, targets), weights))
