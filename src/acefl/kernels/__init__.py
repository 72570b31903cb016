"""The table's inner loops behind one small interface: `choose` picks who runs them, `describe` says who that is.

Plain torch is the oracle and the fall-back. Compiled kernels take over where they pay: numba for long vectors on a CPU
(short ones would wait seconds for a compiler that saves them microseconds), Triton on a GPU.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from acefl.kernels.layout import Layout, Sum
from acefl.kernels.reference import Reference
from acefl.kernels.reference import read as read_with_torch
from acefl.types import Vector

LONG = 1 << 16  # from this length on, memory traffic is what an exchange costs


def choose(layout: Layout, device: torch.device) -> Reference:
    """The fastest kernels for vectors of this length on this device."""
    if device.type == "cpu" and layout.dim >= LONG and _module("numba"):
        from acefl.kernels.cpu import Compiled

        return Compiled(layout)
    return Reference(layout)


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    if value.device.type == "cpu" and value.numel() >= LONG and _module("numba"):
        from acefl.kernels.cpu import read as read_with_numba

        read_with_numba(of, value)
    else:
        read_with_torch(of, value)


def describe() -> dict[str, str]:
    """Which kernels run where on this machine, for people: what `acefl doctor` shows."""
    numba = _module("numba")
    threads = torch.get_num_threads()
    return {
        f"CPU, fewer than {LONG:,} parameters": f"torch {torch.__version__}",
        f"CPU, {LONG:,} parameters or more": f"numba {numba.__version__}, {threads} threads"
        if numba
        else f"torch {torch.__version__}: numba is missing, arrivals take several times longer",
    }


def _module(name: str) -> ModuleType | None:
    """A module, or None where it is missing or does not load (numba refuses a numpy newer than it knows)."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
