"""Rule of a mixture of experts, which is one operator."""

from __future__ import annotations

from autopar.ops.expert_rows import INTERLEAVED
from autopar.rules.declare import Call, Declared, rule


@rule("routed_experts")
def routed_experts(call: Call) -> Declared:
    """Tokens are independent; parts of an expert and choices add up; whole experts do by a variant.

    By another variant tokens travel to their experts, on an axis that splits both.  With a bias of the
    second product choices are not split: each of them adds its expert's bias.
    """
    gated = call.shapes[3][1] != call.shapes[4][2]
    inner = (
        ("(f halves!)" if call.arg(5, "activation") in INTERLEAVED else "(halves! f)")
        if gated
        else "f"
    )
    of_up, of_down = call.is_tensor(6, "up_bias"), call.is_tensor(7, "down_bias")
    choices = "k!" if of_down else "k"
    terms = ["n i!", f"n {choices}", f"n {choices}", f"e {inner} i!", "e o f"]
    terms += [f"e {inner}"] * of_up + ["+ e o"] * of_down
    down = {4, len(terms) - 1} if of_down else {4}
    return Declared(
        f"{', '.join(terms)} -> n o",
        (frozenset({2}), frozenset(down)),
        {"halves": 2} if gated else {},
        {"e": "expert_parallel"},
        pairs={"expert_dispatch": ("n", "e")},
    )
