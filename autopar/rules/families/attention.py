"""Rule of scaled dot-product attention."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.variants import ATTENTION, RING


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Declared | None:
    """Batch and heads are independent; queries too, if the mask is not causal by position.

    If it is, rows of a sequence that attends to itself are split by variants: alone, or with the keys.
    """
    query, key, value = call.shapes[:3]
    if len(call.made[0]) != 4:
        return None
    if query[:2] != call.made[0][:2] or key[:2] != value[:2]:
        return None
    grouped = query[1] != key[1]
    samples = "b" if query[0] == key[0] else "1"
    is_causal = bool(call.arg(5, "is_causal", False))
    in_order = is_causal and query[2] == key[2] and not call.arg(4, "dropout_p", 0.0)
    rows = "s" if in_order or not is_causal else "s!"
    heads, shared = ("(a g)", "a") if grouped else ("a", "a")
    terms = [f"b {heads} {rows} d!", f"{samples} {shared} t! d!", f"{samples} {shared} t! e!"]
    if len(call.shapes) > 3:
        terms.append(_mask(call.shapes[3], call.made[0], key, heads, rows))
    sizes = {"g": query[1] // key[1]} if grouped else {}
    text = f"{', '.join(terms)} -> b {heads} {rows} e!"
    if not in_order:
        return Declared(text, sizes=sizes)
    if samples == "1":
        return Declared(text, sizes=sizes, variants={"s": ATTENTION})
    variants = {"s": ATTENTION, "s&t": RING}
    return Declared(text, sizes=sizes, variants=variants, joined={"s&t": ("s", "t")})


def _mask(
    shape: tuple[int, ...], out: tuple[int, ...], key: tuple[int, ...], heads: str, rows: str
) -> str:
    full = ("b", heads, rows, "t!")
    sizes = (out[0], out[1], out[2], key[2])
    offset = 4 - len(shape)
    return " ".join(
        "1" if size == 1 and sizes[offset + i] != 1 else full[offset + i]
        for i, size in enumerate(shape)
    )
