"""One small interface to the table's inner loops; `choose` picks who runs them."""

from __future__ import annotations

import torch

from acefl.kernels.accumulator import Accumulator
from acefl.kernels.layout import ENCODINGS, Encoding, Key, Layout, Row, Sum
from acefl.kernels.reference import Reference

__all__ = ["ENCODINGS", "Encoding", "Key", "Accumulator", "Layout", "Reference", "Row", "Sum", "choose"]


def choose(layout: Layout, device: torch.device) -> Reference:
    """The fastest kernels for vectors of this length on this device."""
    return Reference(layout, device)
