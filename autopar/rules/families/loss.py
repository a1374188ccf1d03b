"""Rules of losses that are sums; capture turns means into a sum and a division."""

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


SUM, NONE = 2, 0
"""Codes of `reduction` in torch.  Capture decomposes means; those that are left stay whole."""


@rule("nll_loss_nd", "nll_loss", "cross_entropy_loss")
def class_losses(call: Call) -> Declared | None:
    """Scores [n, v, positions] against labels or probabilities; classes stay whole."""
    reduction = call.arg(3, "reduction", 1)
    if reduction not in (SUM, NONE):
        return None
    rank = len(call.shapes[0])
    lead = ["n"] if rank > 1 else []
    places = [f"s{i}" for i in range(rank - 2)]
    scores, labels = term([*lead, "v!", *places]), term([*lead, *places])
    by_label = "int" in call.operands[1].dtype
    terms = [scores, labels if by_label else scores, *["v!"] * (len(call.operands) - 2)]
    kind = call.node.op.split(".")[1]
    plain = call.arg(5, "label_smoothing", 0.0) == 0
    linear = [0] if kind != "cross_entropy_loss" else [1] if plain and not by_label else []
    made = labels if reduction == NONE else term([])
    return Declared(f"{', '.join(terms)} -> {made}", tuple(frozenset({i}) for i in linear))


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
      "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss")  # fmt: skip
def pointwise(call: Call) -> Declared | None:
    """Summed over all elements, or one loss per element."""
    place = {"binary_cross_entropy_with_logits": 4, "binary_cross_entropy": 3}
    name = call.node.op.split(".")[1]
    reduction = call.arg(place.get(name, 2), "reduction", 1)
    if reduction not in (SUM, NONE):
        return None
    rank = max(map(len, call.shapes))
    every = tuple(max(s[-1 - i] for s in call.shapes if i < len(s)) for i in range(rank))[::-1]
    terms = ", ".join(broadcast(shape, every) for shape in call.shapes)
    return Declared(f"{terms} -> {term(names(rank) if reduction == NONE else [])}")


@rule("autopar_static::ctc_loss")
def ctc_loss(call: Call) -> Declared:
    """A loss for each sample, unless the targets of all stand in one row."""
    n = "n" if len(call.shapes[1]) == 2 else "n!"
    targets = [f"{n} s!" if len(call.shapes[1]) == 2 else "s!"] * (len(call.shapes) - 3)
    return Declared(f"t! {n} c!, {', '.join(targets)}, {n}, {n} -> {n}")
