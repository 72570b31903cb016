"""Image classifiers for 32 x 32 pictures: the paper's ResNet-18, and a small network for everyday runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from acefl.core.errors import one_of
from acefl.tasks.batch_norm import CarriedBatchNorm

NORMS = ("group", "batch", "carried")


def normalisation(norm: str, channels: int) -> nn.Module:
    """GroupNorm, BatchNorm by batch statistics, or BatchNorm whose statistics travel with the parameters."""
    one_of("norm", norm, NORMS)
    if norm == "group":
        return nn.GroupNorm(8, channels)
    return CarriedBatchNorm(channels) if norm == "carried" else nn.BatchNorm2d(channels, track_running_stats=False)


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = normalisation(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = normalisation(norm, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), normalisation(norm, after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 10, norm: str = "group", width: int = 64) -> nn.Module:
    """ResNet-18 with the 3 x 3 stem that 32 x 32 images want: 11.2M parameters."""
    stages: list[nn.Module] = []
    before = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        after = width * 2**stage
        stages += [Block(before, after, stride, norm), Block(after, after, 1, norm)]
        before = after
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        normalisation(norm, width),
        nn.ReLU(),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )


def small_cnn(classes: int = 10, norm: str = "group", width: int = 32, hidden: int = 192) -> nn.Module:
    """Three convolutions and a hidden layer: 0.5M parameters."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        normalisation(norm, width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        normalisation(norm, 2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        normalisation(norm, 4 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width * 16, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
