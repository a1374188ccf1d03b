"""The variables nearest to one, by tables between them."""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.tables import Index, Tables
from autopar.utils.compiled import compiled


@compiled
def around(t: Tables, center: int, count: int) -> Index:
    """Return up to `count` variables, breadth first from the center."""
    known = np.zeros(len(t.size), dtype=np.bool_)
    found = np.empty(count, dtype=np.int64)
    found[0] = center
    known[center] = True
    at, size = 0, 1
    while at < size and size < count:
        i = found[at]
        at += 1
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if not known[j] and size < count:
                known[j] = True
                found[size] = j
                size += 1
    return found[:size]
