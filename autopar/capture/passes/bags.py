"""Rewrites embedding bags of equal length as a look-up of rows and a sum or mean.

`nn.EmbeddingBag` on ids [bags, length] separates the bags by offsets, which hides that they are
independent. A look-up and a sum show it, but need more memory: the rows of all bags at once.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from autopar.capture.passes.known import Known
from autopar.capture.passes.rewriting import Tensors, argument
from autopar.ir.graph import Arg, Graph, Node, Ref

SUM, MEAN = 0, 1
"""torch's codes for `mode`."""


def even_bags(node: Node, tensors: Tensors, known: Known, graph: Graph) -> tuple[Node, ...] | None:
    """Return the nodes that replace an ``embedding_bag``, or None if it has to stay.

    Its bags must be known to have equal lengths, without weights per sample or padding.
    """
    length = _length(node, tensors, known)
    mode = argument(node, 4, "mode", SUM)
    per_sample, padding = (
        argument(node, 6, "per_sample_weights"),
        argument(node, 8, "padding_idx", -1),
    )
    others_read = any(graph.consumers.get(made.name) for made in node.outputs[1:])
    plain = (
        per_sample is None
        and padding in (None, -1)
        and not argument(node, 7, "include_last_offset")
    )
    if length is None or not plain or mode not in (SUM, MEAN) or others_read:
        return None
    table, ids, offsets = (tensors[name] for name in node.operands)
    out = node.outputs[0]
    bags = replace(ids, name=f"{out.name}.ids", shape=(offsets.shape[0], length))
    rows = replace(out, name=f"{out.name}.rows", shape=(*bags.shape, table.shape[1]))
    summed = replace(out, name=f"{out.name}.sum") if mode == MEAN else out
    counted, sparse = argument(node, 3, "scale_grad_by_freq"), argument(node, 5, "sparse")
    looked: tuple[Arg, ...] = (Ref(table.name), Ref(bags.name), -1, bool(counted), bool(sparse))
    origin = node.origin
    nodes = (
        Node(
            bags.name, "aten.reshape.default", (Ref(ids.name), bags.shape), (), (bags,), "", origin
        ),
        Node(rows.name, "aten.embedding.default", looked, (), (rows,), "", origin),
        Node(
            summed.name, "aten.sum.dim_IntList", (Ref(rows.name), (1,)), (), (summed,), "", origin
        ),
    )
    if mode == SUM:
        return nodes
    mean: tuple[Arg, ...] = (Ref(summed.name), length)
    return (*nodes, Node(out.name, "aten.div.Tensor", mean, (), (out,), "", origin))


def _length(node: Node, tensors: Tensors, known: Known) -> int | None:
    """Return the number of ids per bag, if it is known and the same for all bags."""
    if not node.op.startswith("aten.embedding_bag."):
        return None
    if len(node.operands) != 3 or node.operands[2] not in known:
        return None
    offsets, count = known[node.operands[2]], tensors[node.operands[1]].shape[0]
    bags = offsets.numel()
    if bags == 0 or count % bags or count == 0:
        return None
    even = torch.arange(0, count, count // bags)
    return count // bags if torch.equal(offsets, even.to(offsets.dtype)) else None
