"""Randomness by key, never from a shared stream.

What client 7 draws on its third visit is a pure function of (seed, 7, 3): it does not depend on how many other clients
were served before, on the batch size, or on the number of workers. The generator is SplitMix64's finaliser, once in
plain Python for the few numbers a dispatch needs and once in torch for the many a minibatch needs; both give the same
bits on every device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import torch

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


Array = np.ndarray[Any, Any]
Keys = list[int] | torch.Tensor  # keys as Python integers, or as a tensor of their 64 bits where the work is done


def signed(x: int) -> int:
    """The same 64 bits as torch's int64 holds them."""
    return x - (1 << 64) if x >= 1 << 63 else x


MUL_A, MUL_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MUL_A_SIGNED, _MUL_B_SIGNED, _GOLDEN_SIGNED = signed(MUL_A), signed(MUL_B), signed(GOLDEN)


def key(*parts: int) -> int:
    """A 64-bit key for a tuple of integers, well mixed in every part."""
    x = 0
    for part in map(index, parts):
        x = extend(x, part)
    return x


def extend(prefix: int, part: int) -> int:
    """`key(*parts, part)`, given `key(*parts)`: for many keys that begin alike."""
    x = ((prefix ^ part) + GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * MUL_A) & _MASK
    x = ((x ^ (x >> 27)) * MUL_B) & _MASK
    return x ^ (x >> 31)


def extend_each(prefixes: Array, parts: Array) -> Array:
    """`extend` of each of these, as unsigned 64-bit integers."""
    return _finalised((prefixes ^ parts.astype(np.int64).view(np.uint64)) + np.uint64(GOLDEN))


def uniforms(keys: Array) -> list[float]:
    """`uniform` of each of these."""
    found: list[float] = (((keys >> _12).astype(np.float64) + 0.5) * 2.0**-52).tolist()
    return found


def uniform(key_: int) -> float:
    """A float in the open interval (0, 1) from a key: 52 bits, since with 53 the largest would round to 1."""
    return ((key_ >> 12) + 0.5) * 2.0**-52


def bits(keys: Keys, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """For each key, `count` independent 63-bit non-negative integers: shape (len(keys), count)."""
    if not isinstance(keys, torch.Tensor):
        keys = torch.tensor([signed(k) for k in keys], dtype=torch.int64, device=device)
    x = keys.unsqueeze(1) + torch.arange(1, count + 1, dtype=torch.int64, device=keys.device) * _GOLDEN_SIGNED
    x = (x ^ _shift(x, 30)) * _MUL_A_SIGNED
    x = (x ^ _shift(x, 27)) * _MUL_B_SIGNED
    return (x ^ _shift(x, 31)) & 0x7FFFFFFFFFFFFFFF


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift: torch's is arithmetic, so the sign bits that come in are masked away."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def normal(keys: Keys, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """For each key, `count` independent standard normal float32 numbers (Box and Muller)."""
    half = (count + 1) // 2
    u = (bits(keys, 2 * half, device) >> 11).to(torch.float64).add_(0.5).mul_(2.0**-52)
    radius = u[:, :half].log().mul_(-2.0).sqrt_()
    angle = u[:, half:].mul(2.0 * math.pi)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)[:, :count].to(torch.float32)


def choose(keys: Keys, count: int, sizes: torch.Tensor) -> torch.Tensor:
    """For each key, `count` draws with replacement from range(size): shape (len(keys), count).

    The remainder's bias is below size / 2**63.
    """
    return bits(keys, count, sizes.device) % sizes.unsqueeze(1)


def choose_here(keys: list[int], count: int, sizes: Array) -> Array:
    """`choose` on the CPU, the same numbers: numpy takes a fraction of torch's time for a call on so few."""
    x = _finalised(np.array(keys, np.uint64)[:, None] + _steps(count))
    x &= _POSITIVE
    x %= sizes.view(np.uint64)[:, None]
    return x.view(np.int64)


def _finalised(x: Array) -> Array:
    """SplitMix64's finaliser, in place."""
    x ^= x >> _30
    x *= _MUL_A_UNSIGNED
    x ^= x >> _27
    x *= _MUL_B_UNSIGNED
    x ^= x >> _31
    return x


_12, _30, _27, _31 = np.uint64(12), np.uint64(30), np.uint64(27), np.uint64(31)
_MUL_A_UNSIGNED, _MUL_B_UNSIGNED, _POSITIVE = np.uint64(MUL_A), np.uint64(MUL_B), np.uint64(0x7FFFFFFFFFFFFFFF)


@lru_cache(maxsize=16)
def _steps(count: int) -> Array:
    """What `bits` adds to a key for each number it draws."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)


def generator(*parts: int) -> torch.Generator:
    """A CPU generator seeded by a key, for code that wants torch's own samplers."""
    return torch.Generator().manual_seed(key(*parts) >> 1)
