"""Rewrites reshapes that merge neighbouring dims or split one dim as `flatten` or `unflatten`."""

from __future__ import annotations

import math

from autopar.ir.graph import Arg, Graph, Node, short
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding

Shape = tuple[int, ...]


def said_plainly(
    node: Node, args: tuple[Arg, ...], sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[str, tuple[Arg, ...]]:
    """Return the operator and its local arguments, as a merge or a split if it is nothing else."""
    if short(node.op) not in ("view", "reshape", "_unsafe_view"):
        return node.op, args
    (operand,), (made,) = node.operands, node.outputs
    before, after = graph.tensors[operand].shape, made.shape
    first, last = _middle(before, after)
    merged, split = len(before) - last - first, len(after) - last - first
    local = (
        sharding.inputs[0].local_shape(before, mesh),
        sharding.outputs[0].local_shape(after, mesh),
    )
    middles = local[0][first : first + merged], local[1][first : first + split]
    if math.prod(middles[0]) != math.prod(middles[1]):
        return node.op, args
    if merged > 1 and split == 1:
        end = first + merged - 1 if last else -1
        return "aten.flatten.using_ints", (args[0], first, end)
    if merged == 1 and split > 1:
        return "aten.unflatten.int", (args[0], first if last else -1, middles[1])
    return node.op, args


def _middle(before: Shape, after: Shape) -> tuple[int, int]:
    """Return the numbers of leading and of trailing dims that are unchanged."""
    shorter = min(len(before), len(after))
    first = 0
    while first < shorter and before[first] == after[first]:
        first += 1
    last = 0
    while last < shorter - first and before[-1 - last] == after[-1 - last]:
        last += 1
    return first, last
