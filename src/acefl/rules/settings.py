"""Settings the rules share, checked the same way everywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from acefl.core.errors import one_of, require
from acefl.core.types import Vector

ENCODINGS = ("fp32", "bf16", "int8", "int4")
WARMUPS = ("wait", "seen")
WEIGHTS = ("uniform", "samples")


def check_table(table: str, home: str | os.PathLike[str]) -> None:
    one_of("table", table, ENCODINGS)
    require(bool(str(home)), "home is empty; allowed: 'memory', 'device' or a path")


def check_count(name: str, value: int, least: int = 1) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, f"{name} is {value!r}; allowed: a whole number of at least {least}")


def client_weights(weights: str, clients: int, samples: Sequence[int] | None) -> list[float]:
    """One weight per client: 1 for everybody (the paper), or its number of samples."""
    if weights == "uniform":
        return [1.0] * clients
    wrong = "weights='samples' needs every client's number of samples at the start (samples= of build())"
    require(samples is not None, f"{wrong}; allowed where nobody knows them then, as on Flower: uniform")
    assert samples is not None
    require(len(samples) == clients, f"samples has {len(samples)} entries; allowed: one per client, {clients}")
    require(all(s > 0 for s in samples), "samples has a client without data; allowed: at least 1 each")
    return [float(s) for s in samples]


def empty_vector(like: Vector) -> Vector:
    """A float32 scratch vector where the model lives."""
    return torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
