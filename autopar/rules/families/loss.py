"""Losses as pure sums (capture has taken the means apart)."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import broadcast, names, term


@rule("cross_entropy_sum")
def cross_entropy_sum(call: Call) -> Declared:
    """Logits [n, v, positions], targets [n, positions]; the vocabulary through its own variant."""
    rank = len(call.shapes[0])
    positions = " ".join(f"s{i}" for i in range(rank - 2))
    lead = "n" if rank > 1 else ""
    weighted = len(call.operands) > 2
    classes = "v!" if weighted or rank != 2 else "v"
    terms = [f"{lead} {classes} {positions}", f"{lead} {positions}"]
    terms += ["v!"] * weighted
    variants = {"v": "vocab_parallel_cross_entropy"} if classes == "v" else {}
    return Declared(f"{', '.join(terms)} -> ", variants=variants)


@rule("count_valid")
def count_valid(call: Call) -> Declared:
    """Counts add up."""
    weights = ", v!" if len(call.operands) > 1 else ""
    return Declared(f"b*{weights} -> ")


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
      "binary_cross_entropy_with_logits", "kl_div")  # fmt: skip
def pointwise(call: Call) -> Declared | None:
    """Summed over all elements (reduction 2); any other reduction is not split."""
    place = {"binary_cross_entropy_with_logits": 4, "binary_cross_entropy": 3}
    name = call.node.op.split(".")[1]
    if call.arg(place.get(name, 2), "reduction", 1) != 2:
        return None
    out = max(call.shapes, key=len)
    every = tuple(max(s[-1 - i] for s in call.shapes if i < len(s)) for i in range(len(out)))[::-1]
    terms = ", ".join(broadcast(shape, every) for shape in call.shapes)
    return Declared(f"{terms} -> {term([])}") if names(len(every)) else None
