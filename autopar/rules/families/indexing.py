"""Look-ups."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule


@rule("embedding")
def embedding(call: Call) -> Declared:
    """Rows of a table; the vocabulary through vocab_parallel_embedding, which leaves zeros to add."""
    scaled = call.arg(3, "scale_grad_by_freq", False) or call.arg(4, "sparse", False)
    if scaled:
        # How often an index occurs is counted over all of them.
        return Declared("v! h, b*! -> b*! h", (frozenset({0}),))
    return Declared(
        "v h, b* -> b* h", (frozenset({0}),), variants={"v": "vocab_parallel_embedding"}
    )
