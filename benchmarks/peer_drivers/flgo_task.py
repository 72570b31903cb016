"""The digits as FLGo wants a task: a file of this form, which it copies and imports."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader as Loader
from torch.utils.data import TensorDataset
from work import Mlp, read

digits = read(os.environ["PEERS_DATA"])
train_data = [TensorDataset(*rows) for rows in digits.clients]
test_data = TensorDataset(*digits.test)


def get_model() -> nn.Module:
    return Mlp()


def data_to_device(batch: Any, device: torch.device) -> Any:
    return batch[0].to(device), batch[1].to(device)


def compute_loss(model: nn.Module, batch: Any, device: torch.device) -> dict[str, torch.Tensor]:
    inputs, targets = data_to_device(batch, device)
    return {"loss": nn.functional.cross_entropy(model(inputs), targets)}


def eval(model: nn.Module, loader: Loader[Any], device: torch.device) -> dict[str, float]:
    loss = right = seen = 0.0
    for batch in loader:
        inputs, targets = data_to_device(batch, device)
        scores = model(inputs)
        loss += nn.functional.cross_entropy(scores, targets, reduction="sum").item()
        right += (scores.argmax(1) == targets).sum().item()
        seen += len(targets)
    return {"loss": loss / seen, "accuracy": right / seen}
