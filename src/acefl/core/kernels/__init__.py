"""The table's inner loops behind one small interface: `choose` picks who runs them, `describe` says who that is.

Plain numpy is the oracle and the fall-back. Compiled kernels take over where they pay: numba on a CPU, for long vectors
at once and for short ones after so many exchanges that loading it pays, Triton on a GPU.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
import torch

from acefl.core.errors import require
from acefl.core.kernels.host import ThroughHost, read_through_host
from acefl.core.kernels.layout import Layout, Sum
from acefl.core.kernels.patient import Patient, expecting, many_expected
from acefl.core.kernels.reference import Reference
from acefl.core.kernels.reference import read as read_with_numpy
from acefl.core.types import Vector

__all__ = ["LONG", "buffer_loop", "choose", "describe", "expecting", "is_finite", "read"]

LONG = 1 << 16  # from this length on, memory traffic is what an exchange costs


def choose(layout: Layout, device: torch.device) -> Reference:
    """The fastest kernels for vectors of this length on this device."""
    if device.type == "cpu" and layout.dim >= LONG and _module("numba"):
        from acefl.core.kernels.cpu import Compiled

        return Compiled(layout)
    if device.type == "cuda":
        if not _module("triton"):
            return ThroughHost(layout)
        from acefl.core.kernels.gpu import Triton

        return Triton(layout)
    require(device.type == "cpu", f"the model is on {device}; allowed: cpu or cuda")
    return Patient(layout)


def buffer_loop(like: Vector) -> Callable[..., None] | None:
    """`cpu.buffered` for short vectors in runs that are long enough; None: torch's calls do as well."""
    short = like.device.type == "cpu" and like.dtype == torch.float32 and like.numel() < LONG
    if not (short and many_expected() and _module("numba")):
        return None
    from acefl.core.kernels.cpu import buffered

    return buffered


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    if value.device.type == "cuda":
        if _module("triton"):
            from acefl.core.kernels.gpu import read as read_with_triton

            read_with_triton(of, value)
        else:
            read_through_host(of, value)
    elif _module("numba"):
        from acefl.core.kernels.cpu import read as read_with_numba

        read_with_numba(of, value)
    else:
        read_with_numpy(of, value)


def is_finite(vector: Vector) -> bool:
    """Whether every entry is a number; a sum may overflow although it is so, and only then is each looked at."""
    known = vector.device.type == "cpu" and vector.dtype == torch.float32 and vector.is_contiguous()
    if known and vector.numel() >= LONG and _module("numba"):
        from acefl.core.kernels.cpu import is_finite as look_with_numba

        return look_with_numba(vector)
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


def describe() -> dict[str, str]:
    """Which kernels run where on this machine, for people: what `acefl doctor` shows."""
    numpy = f"numpy {np.__version__}"
    numba, triton = _module("numba"), _module("triton")
    found = {
        f"CPU, fewer than {LONG:,} parameters": numpy,
        f"CPU, {LONG:,} parameters or more": f"{numpy}: numba is missing, an arrival takes several times longer",
    }
    if numba:
        found[f"CPU, {LONG:,} parameters or more"] = f"numba {numba.__version__}, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        found[gpu] = f"triton {triton.__version__}" if triton else f"{numpy}: triton is missing, vectors visit the host"
    return found


@cache
def _module(name: str) -> ModuleType | None:
    """A module, or None where it is missing or does not load (numba refuses a numpy newer than it knows)."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
