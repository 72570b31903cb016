"""Model and data: nothing here knows of Flower or acefl, but for the split of the data."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from acefl.tasks import partition

Data = tuple[torch.Tensor, torch.Tensor]


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(client: int | None = None, clients: int = 1) -> Data:
    """A client's training data (skewed by label), or with no client the server's test data."""
    digits = load_digits()
    inputs, labels = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 10 < 3
    if client is None:
        return inputs[test], labels[test]
    rows = partition(labels[~test], clients, alpha=0.5, seed=0)[client]
    return inputs[~test][rows], labels[~test][rows]


def train(model: nn.Module, data: Data, steps: int, batch: int, lr: float) -> float:
    """Some steps of SGD; the mean loss."""
    inputs, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    total = 0.0
    for _ in range(steps):
        rows = torch.randint(len(labels), (batch,))
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / steps


@torch.no_grad()
def test(model: nn.Module, data: Data) -> dict[str, float]:
    inputs, labels = data
    output = model(inputs)
    return {
        "loss": float(nn.functional.cross_entropy(output, labels)),
        "accuracy": float((output.argmax(1) == labels).float().mean()),
    }
