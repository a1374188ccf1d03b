"""Bytes of one rank's shard of a tensor, and of what an operator saves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.graph import Graph, Node, Saved, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.plans.decisions import OpSharding
from autopar.rules import variant_memory

VIEWS = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "t",
        "detach",
        "alias",
        "unflatten",
        "flatten",
        "numpy_T",
        "mT",
    ]
)
"""Operators that move no bytes: their output shares the operand's storage."""


def local_nbytes(tensor: Tensor, sharding: Sharding, mesh: Mesh) -> int:
    """Return the bytes of one rank's shard."""
    return math.prod(sharding.local_shape(tensor.shape, mesh)) * tensor.itemsize


def split(sharding: OpSharding, mesh: Mesh) -> int:
    """Return the number of ranks among which the operator's work is divided."""
    return _among((*sharding.inputs, *sharding.outputs), mesh)


def _among(forms: Sequence[Sharding], mesh: Mesh) -> int:
    axes = [a for a in range(len(mesh)) if any(isinstance(form[a], S) for form in forms)]
    return math.prod(mesh.sizes[a] for a in axes)


def extra_nbytes(saved: Saved, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> int:
    """Return the bytes on one rank that an operator saves besides operands and outputs."""
    if saved.is_nothing:
        return 0
    alike = sum(nbytes for _, nbytes in saved.like)
    divided = (saved.extra_nbytes - alike) // split(sharding, mesh)
    like = sum(nbytes // _among([sharding.inputs[place]], mesh) for place, nbytes in saved.like)
    return divided + like + variant_memory(node, sharding, graph, mesh).kept
