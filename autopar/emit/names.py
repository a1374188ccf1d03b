"""Chooses Python names for values, unique within one function."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autopar.emit.statement import Value
from autopar.ir.placement import P, R, S
from autopar.utils.identifiers import WORDS, identifier

RUNTIME_NAMES = (
    "I", "Module", "N", "P", "R", "S", "all_gather", "all_gather_together", "all_reduce",
    "all_to_all", "batch_norm",
    "count_valid", "cross_entropy_sum", "expert_parallel", "invariant", "padded_embedding",
    "partial", "per_shard", "reduce_scatter", "replicate", "replicate_together", "routed_experts",
    "shard", "start_gather", "strided",
    "sync_batch_norm",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding",
)  # fmt: skip
"""Names that emitted code may import from `autopar.runtime`."""
RESERVED = frozenset({"range", "float", *RUNTIME_NAMES, *WORDS} - {"input"})


class Names:
    """Names each value once; further shardings of a tensor get a suffix for the conversion."""

    def __init__(self, strip: str = "", taken: Iterable[str] = ()) -> None:
        self._strip = strip
        self._names: dict[Value, str] = {}
        self._tensors: dict[str, Value] = {}
        self._used: set[str] = {*RESERVED, *taken}

    def __getitem__(self, value: Value) -> str:
        return self._names[value]

    def __contains__(self, value: Value) -> bool:
        return value in self._names

    def define(self, value: Value, name: str | None = None) -> str:
        """Return the value's name, chosen on first use: the tensor's name for its first sharding."""
        if value in self._names:
            return self._names[value]
        chosen = self.free(name or self._base(value))
        self._tensors.setdefault(value.tensor, value)
        self._names[value] = chosen
        return chosen

    def free(self, base: str) -> str:
        """Return a name that is not used yet, and reserve it."""
        chosen, count = base, 1
        while chosen in self._used:
            count += 1
            chosen = f"{base}_{count}"
        self._used.add(chosen)
        return chosen

    def _base(self, value: Value) -> str:
        stem = re.sub(self._strip, "", value.tensor) if self._strip else value.tensor
        stem = identifier(stem)
        first = self._tensors.get(value.tensor)
        return stem if first is None else f"{stem}_{_word(first, value)}"


def _word(first: Value, value: Value) -> str:
    pairs = [(a, b) for a, b in zip(first.form, value.form, strict=True) if a != b]
    if any(isinstance(b, S) for _, b in pairs):
        return "part"
    if any(a is P for a, _ in pairs):
        return "sum"
    if any(isinstance(a, S) for a, _ in pairs):
        return "full"
    return "r" if any(b is R for _, b in pairs) else "i"
