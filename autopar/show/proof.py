"""How good an answer is, in words."""

from __future__ import annotations


def proof(cost_s: float, bound_s: float) -> str:
    """How far from optimal a cost can be at most."""
    gap = cost_s - bound_s
    if gap <= 1e-9 * max(cost_s, 1e-12):
        return "optimal"
    return f"within {max(gap / abs(cost_s), 1e-4):.2%} of optimal"
