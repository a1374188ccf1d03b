"""Rule of a mixture of experts, which is one operator."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule


@rule("routed_experts")
def routed_experts(call: Call) -> Declared:
    """Tokens are independent; parts of an expert and choices add up; whole experts do by a variant."""
    gated = call.shapes[3][1] != call.shapes[4][2]
    up = "e (halves! f) i!" if gated else "e f i!"
    return Declared(
        f"n i!, n k, n k, {up}, e o f -> n o",
        (frozenset({2}), frozenset({4})),
        {"halves": 2} if gated else {},
        {"e": "expert_parallel"},
    )
