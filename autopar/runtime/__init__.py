"""Names that emitted modules import."""

from autopar.ir.placement import I, N, P, R, S
from autopar.runtime.convert import (
    all_gather,
    all_gather_together,
    all_reduce,
    all_to_all,
    invariant,
    partial,
    reduce_scatter,
    replicate,
    replicate_together,
    shard,
    start_gather,
)
from autopar.runtime.module import Module
from autopar.runtime.random import per_shard
from autopar.runtime.variants import (
    batch_norm,
    count_valid,
    cross_entropy_sum,
    expert_parallel,
    padded_embedding,
    routed_experts,
    strided,
    sync_batch_norm,
    vocab_parallel_cross_entropy,
    vocab_parallel_embedding,
)

__all__ = [
    "I", "Module", "N", "P", "R", "S", "all_gather", "all_gather_together", "all_reduce",
    "all_to_all", "batch_norm",
    "count_valid", "cross_entropy_sum", "expert_parallel", "invariant",
    "padded_embedding", "partial", "per_shard", "reduce_scatter", "replicate", "replicate_together",
    "routed_experts", "shard",
    "start_gather", "strided", "sync_batch_norm",
    "vocab_parallel_cross_entropy", "vocab_parallel_embedding",
]  # fmt: skip
