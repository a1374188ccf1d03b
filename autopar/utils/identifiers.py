"""Converts names in users' models to Python identifiers for emitted code."""

from __future__ import annotations

import builtins
import keyword
import unicodedata

FUNCTIONS = frozenset([
    "I", "Module", "N", "P", "R", "S", "all_gather_together", "batch_norm", "count_valid",
    "cross_entropy_sum", "expert_dispatch", "expert_parallel", "padded_embedding", "per_shard",
    "replicate_together", "ring_attention", "routed_experts", "sequence_parallel_attention",
    "start_gather", "strided", "sync_batch_norm", "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding",
])  # fmt: skip
"""Names that emitted code imports from `autopar.runtime`, besides collectives."""
WORDS = frozenset({*keyword.kwlist, "self", "torch", "F", "block", *dir(builtins)})
"""Names that variables of emitted code must not have."""
MEMBERS = frozenset(
    {"ahead", "at", "constant", "device", "each", "forward", "gather", "mesh", "put", "recompute",
     "path_of", *dir(object)}
)  # fmt: skip
"""Attributes of the emitted modules themselves."""


def identifier(text: str) -> str:
    """Return a valid identifier that resembles the text, in NFKC as Python normalises identifiers."""
    normal = unicodedata.normalize("NFKC", text)
    name = "".join(c if f"_{c}".isidentifier() else "_" for c in normal)
    if not name.isidentifier():
        name = f"t_{name}".rstrip("_") if name.strip("_") else "t"
    return name


def is_identifier(name: str) -> bool:
    """Whether Python reads the name as an identifier, and not as another one or as a keyword."""
    return (
        name.isidentifier()
        and unicodedata.normalize("NFKC", name) == name
        and not keyword.iskeyword(name)
    )


def is_attribute(name: str) -> bool:
    """Whether ``self.name`` is valid, and is not in `MEMBERS`."""
    return is_identifier(name) and name not in MEMBERS and not name.startswith("_")
