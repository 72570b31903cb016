"""The work of a node: a gradient that is the same function of node and model wherever it is computed."""

from __future__ import annotations

import torch

DIM, LR = 1000, 0.2


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, DIM)


def gradient(partition: int, model: torch.Tensor) -> torch.Tensor:
    optimum = torch.randn(DIM, generator=torch.Generator().manual_seed(partition))
    return 0.5 * (model - optimum)
