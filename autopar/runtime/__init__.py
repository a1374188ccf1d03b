"""Names that emitted modules import: functions, and every collective by its name."""

from typing import Any

from autopar.ir.collectives import COLLECTIVES
from autopar.ir.placement import I, N, P, R, S
from autopar.runtime.convert import (
    all_gather_together,
    named_collective,
    replicate_together,
    start_gather,
)
from autopar.runtime.module import Module
from autopar.runtime.random import per_shard
from autopar.runtime.variants import (
    batch_norm,
    count_valid,
    cross_entropy_sum,
    expert_dispatch,
    expert_parallel,
    padded_embedding,
    ring_attention,
    routed_experts,
    sequence_parallel_attention,
    strided,
    sync_batch_norm,
    vocab_parallel_cross_entropy,
    vocab_parallel_embedding,
)

__all__ = [
    "I", "Module", "N", "P", "R", "S", "all_gather_together", "batch_norm", "count_valid",
    "cross_entropy_sum", "expert_dispatch", "expert_parallel", "padded_embedding", "per_shard",
    "replicate_together", "ring_attention", "routed_experts", "sequence_parallel_attention",
    "start_gather", "strided", "sync_batch_norm", "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a collective; collectives may be added after this import."""
    if name in COLLECTIVES:
        return named_collective(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
