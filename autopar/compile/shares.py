"""Checks that tensors split by samples scale with the size of a microbatch.

A tensor that forward creates with a hard-coded batch size (`torch.zeros(8, ...)`) has that size for a
microbatch too, and PyTorch silently broadcasts a microbatch of one sample to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from autopar.errors import InputError
from autopar.ir.graph import Graph, Node, short
from autopar.ir.placement import S, Type
from autopar.utils.messages import argument

Types = Mapping[str, frozenset[Type]]
_STRETCHING = frozenset(["expand", "expand_as", "broadcast_to"])


def check_shares(whole: Graph, part: Graph, types: Types, pieces: int) -> None:
    """Raise `InputError` if a tensor of `part` is not 1/`pieces` of the whole batch's along its samples.

    `types` are the types that the whole batch's tensors can have on a mesh axis of size `pieces`.
    """
    dims = {name: dim for name in types if (dim := _split_dim(types[name])) is not None}
    ours = {tensor.name: tensor.shape for node in part.nodes for tensor in node.outputs}
    for node in whole.nodes:
        for tensor in node.outputs:
            if tensor.name in dims and tensor.name in ours:
                expected = list(tensor.shape)
                expected[dims[tensor.name]] //= pieces
                if list(ours[tensor.name]) != expected:
                    raise InputError(_said(node, ours[tensor.name], expected))
    known = {factor for _, factor in _stretched(whole, dims, types)}
    for node, factor in _stretched(part, dims, types):
        if factor not in known:
            raise InputError(
                _said(node, node.outputs[0].shape, part.tensors[node.operands[0]].shape)
            )


def _split_dim(kinds: frozenset[Type]) -> int | None:
    """Return the dim that is split by samples, if that is a tensor's only possible type."""
    first = next(iter(kinds), None)
    return first.dim if len(kinds) == 1 and isinstance(first, S) else None


def _stretched(graph: Graph, dims: Mapping[str, int], types: Types) -> Iterator[tuple[Node, int]]:
    """Yield operators that broadcast samples, and the factor by which the number of elements grows.

    A tensor that only the part's graph has counts as samples if an operand of its operator does.
    """
    samples = set(dims)
    for node in graph.nodes:
        if not samples.intersection(node.operands):
            continue
        samples.update(tensor.name for tensor in node.outputs if tensor.name not in types)
        if short(node.op) in _STRETCHING and node.operands[0] in samples:
            before = math.prod(graph.tensors[node.operands[0]].shape)
            yield node, math.prod(node.outputs[0].shape) // max(before, 1)


def _said(node: Node, part: tuple[int, ...], expected: list[int] | tuple[int, ...]) -> str:
    where = f" ({node.origin.file}:{node.origin.line})" if node.origin.file else ""
    return (
        f"{node.path}{where} has the shape {list(part)} for a part of the batch, where "
        f"{list(expected)} would be its share, so microbatches would change what the model "
        "computes: the batch size is written as a number there or earlier. Write len(x) or "
        f"x.shape[0] instead. Or use {argument('microbatches', 1)}."
    )
