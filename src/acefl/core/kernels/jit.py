"""numba's compiler as the kernels use it."""

# mypy: disable-error-code="no-untyped-call,misc,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys


class _Kept(FunctionCache):
    """Functions that were compiled before, loaded as they are.

    numba first imports all that it could compile a function with, which takes several times as long as its own import.
    Compiling asks for that by itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


def jit(function: Callable[..., Any]) -> Any:
    """The function as machine code, kept in numba's cache, without the lock of Python and without checks."""
    compiled = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")(function)
    compiled._cache = _Kept(function)
    return compiled
