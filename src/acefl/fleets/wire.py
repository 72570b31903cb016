"""Vectors as bytes: how updates and models travel.

The lossy encodings round stochastically, so that what arrives is right on average and a mean over many arrivals is not
biased by the wire. The format is written down here, apart from how the server's table keeps its rows, because two
installations have to agree on it. Decoding looks at nothing but the number of bytes: what a stranger sends can give
strange numbers, which the server's gate judges, and nothing else.

- `fp32`: the numbers, little-endian.
- `bf16`: the upper two bytes of each number.
- `int8`: for each block of 128 numbers a float32 scale, all scales first; then the codes, one byte each. A number is
  its code times its block's scale.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.types import Vector

ENCODINGS: Final = ("fp32", "bf16", "int8")
BLOCK, LARGEST = 128, 127
_ROOM = 1 + 1e-6  # so that no rounding error carries the largest number of a block beyond the largest code


def nbytes(encoding: str, dim: int) -> int:
    """How many bytes a vector takes on the wire."""
    one_of("encoding", encoding, ENCODINGS)
    return {"fp32": 4 * dim, "bf16": 2 * dim, "int8": dim + 4 * _blocks(dim)}[encoding]


def encode(vector: Vector, encoding: str, draw: int = 0) -> bytes:
    """A vector's bytes; `draw` makes the rounding of this one its own (a task's number, say)."""
    one_of("encoding", encoding, ENCODINGS)
    require(vector.dim() == 1 and vector.numel() > 0, f"a vector of shape {tuple(vector.shape)} cannot be sent")
    flat = vector.detach().to("cpu", torch.float32).contiguous()
    if encoding == "fp32":
        return flat.numpy().astype("<f4", copy=False).tobytes()
    require(bool(torch.isfinite(flat).all()), f"the vector is not finite; {encoding} has no code for that")
    random = keyed.generator(draw)
    return _encode_bf16(flat, random) if encoding == "bf16" else _encode_int8(flat, random)


def decode(data: bytes, encoding: str, dim: int) -> Vector:
    """The float32 vector that bytes stand for; InvalidInput if they are not as many as it takes."""
    expected = nbytes(encoding, dim)
    if len(data) != expected:
        raise InvalidInput(f"{len(data):,} bytes for {dim:,} numbers; {encoding} takes {expected:,}")
    if encoding == "fp32":
        return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
    if encoding == "bf16":
        return torch.from_numpy((np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32))
    blocks = _blocks(dim)
    scales = torch.from_numpy(np.frombuffer(data, "<f4", blocks).astype(np.float32))
    codes = torch.from_numpy(np.frombuffer(data, np.int8, dim, 4 * blocks).astype(np.float32))
    return codes.mul_(scales.repeat_interleave(BLOCK)[:dim])


def _encode_bf16(flat: Vector, random: torch.Generator) -> bytes:
    draws = torch.randint(0, 1 << 16, (flat.numel(),), dtype=torch.int32, generator=random)
    upper = draws.add_(flat.view(torch.int32)).view(torch.int16)[1::2]
    return upper.contiguous().numpy().astype("<i2", copy=False).tobytes()


def _encode_int8(flat: Vector, random: torch.Generator) -> bytes:
    dim = flat.numel()
    padded = torch.nn.functional.pad(flat, (0, _blocks(dim) * BLOCK - dim)).view(-1, BLOCK)
    scales = padded.abs().amax(1).mul_(_ROOM / LARGEST)
    tiny = scales < torch.finfo(torch.float32).tiny
    codes = torch.where(tiny[:, None], 0.0, padded / scales[:, None])
    codes = codes.add_(torch.rand(codes.shape, generator=random)).floor_().clamp_(-LARGEST, LARGEST)
    codes = codes.masked_fill_(tiny[:, None], 0.0).to(torch.int8).view(-1)[:dim]
    return scales.numpy().astype("<f4", copy=False).tobytes() + codes.numpy().tobytes()


def _blocks(dim: int) -> int:
    return -(-dim // BLOCK)
