"""Compiles a numeric function with numba; what was compiled is kept beside the source.

Where neither that folder nor the user's own cache may be written, each process compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

PROMISED = {"nnan", "nsz"}
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Return the function as machine code; it may use numbers, arrays and named tuples of them.

    Costs are infinite but never NaN, so minima may be taken in any order (several at a time).
    """
    try:
        return cast(Function, numba.njit(cache=True, fastmath=PROMISED)(function))
    except RuntimeError:  # numba finds no place for its cache
        return cast(Function, numba.njit(fastmath=PROMISED)(function))


def inlined(function: Function) -> Function:
    """Return a function that becomes a part of each compiled function that calls it.

    A call with arrays counts references, which takes longer than a few additions.
    """
    return cast(Function, numba.njit(inline="always", fastmath=PROMISED)(function))
