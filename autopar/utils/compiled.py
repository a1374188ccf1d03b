"""Compiles a numeric function with numba; what was compiled is kept beside the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Return the function as machine code; it may use numbers, arrays and named tuples of them.

    Costs are infinite but never NaN, so minima may be taken in any order (several at a time).
    """
    return cast(Function, numba.njit(cache=True, fastmath={"nnan", "nsz"})(function))
