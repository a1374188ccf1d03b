"""What attention of a split sequence saves and allocates (`autopar/runtime/sequence_attention.py`)."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding


def of_rows(
    plain: Saved, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh, kind: str
) -> Saved:
    """Return what one rank's rows save; `plain` is attention on the same shards, `kind` the device's.

    Besides queries, keys, values and result these are the rows that came from another rank, their
    result, and a logarithm of each row's sum.  In the backward, gradients of the keys before a half of
    the rows are made apart, for each head of the queries, and then added.
    """
    query, key, value = (
        form.local_shape(graph.tensors[name].shape, mesh)
        for name, form in zip(node.operands, sharding.inputs, strict=True)
    )
    itemsize, rows = node.outputs[0].itemsize, query[2]
    wide, swapped = max(itemsize, 4), rows // 2
    every = query[0] * query[1]
    sums = every * rows * wide
    kept, made = every * (rows - swapped), every * rows * value[3] * itemsize
    extra = every * swapped * (query[3] + value[3]) * itemsize + sums
    # Two parts, the same in a wide dtype, and their mean.
    merging = kept * value[3] * (2 * itemsize + (3 if wide > itemsize else 1) * wide)
    before = query[0] * (key[2] - swapped) * (key[3] + value[3]) * itemsize
    grouped = query[1] != key[1]
    repeats = (2 if kind != "cuda" else 1) * grouped
    of_keys = before * (key[1] + query[1] * repeats)
    of_rows = (2 * kept * query[3] + every * swapped * value[3]) * itemsize
    return replace(
        plain,
        operands=(0, 1, 2),
        outputs=(0,),
        extra_nbytes=extra,
        like=(),
        copied=(),
        forward_nbytes=max(made + sums, merging - made),
        backward_nbytes=of_keys + of_rows,
        early_nbytes=0,
        cached=(0,),
        cached_nbytes=extra,
    )
