"""Vanilla asynchronous SGD (Mishchenko et al. 2022): step on each arriving gradient alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acefl.core.types import Vector
from acefl.rules.base import Method, Rule
from acefl.rules.fedbuff import FedBuff


@dataclass(frozen=True)
class ASGD(Method):
    """One arrival, one step on it: FedBuff with a buffer of one. Fast clients move the model more often."""

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return FedBuff(buffer=1).build(clients, like, samples)
