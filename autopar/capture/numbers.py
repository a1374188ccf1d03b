"""Gives the graph of a part of a batch the numbers of the whole batch.

Forward may compute numbers from the batch size: ``loss / len(x)``, the count of a mean. They are
literals of the graph, and in the graph of a part they are those of the part. Sizes and positions
stay those of the part.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autopar.capture.passes.noop import ALWAYS, IF_UNCHANGED
from autopar.capture.where import location
from autopar.errors import CaptureError
from autopar.ir.graph import Arg, Graph, Node, short
from autopar.utils.messages import argument

SIZED = {
    "arange", "chunk", "eye", "linspace", "narrow", "narrow_copy", "one_hot", "repeat_interleave",
    "roll", "select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes",
    "tensor_split", "unfold", "rand", "randint", "randn", "randperm", "empty", "zeros", "ones",
}  # fmt: skip
"""Operators whose numbers are sizes of their results or positions in their operands."""
INDEXING = {"aten.index.Tensor", "aten._embedding_bag.default", "aten.embedding.default"}
"""Operators that folding may replace differently for another batch size."""
CUTTING = {"aten.slice.Tensor", "aten.narrow.default"}
"""Operators that are no-ops either for every batch size or for none."""


def with_numbers_of(whole: Graph, part: Graph) -> Graph:
    """Return the graph of a part of a batch with the whole batch's numbers; both are before `LAST`.

    Raise `CaptureError` if the two do not compute with numbers in the same places.
    """
    _check_alike(whole, part)
    known = {node.name: node for node in whole.nodes}
    nodes = tuple(_with_numbers(node, known.get(node.name)) for node in part.nodes)
    return replace(part, nodes=nodes)


def _check_alike(whole: Graph, part: Graph) -> None:
    ours, theirs = ({(n.name, n.op): n for n in graph.nodes} for graph in (whole, part))
    odd = [n for key, n in ours.items() if _matters(n) and key not in theirs]
    odd += [n for key, n in theirs.items() if _matters(n) and key not in ours]
    sizes = _samples(whole), _samples(part)
    odd += [n for key, n in ours.items() if key in theirs and not _grows(n, theirs[key], *sizes)]
    if odd:
        raise CaptureError(
            f"{whole.name} computes something else for a part of the batch than for all of it, so "
            f"microbatches would change its result, at {location(odd[0].origin)}\n"
            f"Pass {argument('microbatches', 1)}, or make the computation the same for every batch "
            "size."
        )


def _samples(graph: Graph) -> int:
    """Return the first dim of the first input that has dims."""
    shapes = (node.outputs[0].shape for node in graph.leaves("input"))
    return next((shape[0] for shape in shapes if shape), 1)


def _grows(whole: Node, part: Node, samples: int, fewer: int) -> bool:
    """Return whether a result has the same number of elements for a part, or the same per sample."""
    if whole.is_leaf or not any(tensor.differentiable for tensor in whole.outputs):
        return True
    pairs = [
        (math.prod(one.shape), math.prod(other.shape))
        for one, other in zip(whole.outputs, part.outputs, strict=True)
    ]
    return all(many == few or many * fewer == few * samples for many, few in pairs)


def _matters(node: Node) -> bool:
    """Return whether a node with a gradient does more than regroup dims.

    For one sample some regroupings are no-ops, and known values may have been made by other
    operators.
    """
    regroups = node.is_leaf or node.op in (IF_UNCHANGED | ALWAYS | INDEXING) - CUTTING
    return not regroups and any(tensor.differentiable for tensor in node.outputs)


def _with_numbers(node: Node, whole: Node | None) -> Node:
    if whole is None or whole.op != node.op or short(node.op) in SIZED:
        return node
    if node.op == "constant":
        same = [t.shape for t in whole.outputs] == [t.shape for t in node.outputs]
        return replace(node, args=whole.args) if same else node
    own, given = dict(node.kwargs), dict(whole.kwargs)
    sizes = {key: value for key, value in own.items() if not _is_number(value)}
    numbers = {key: value for key, value in given.items() if _is_number(value)}
    kwargs = {**own, **numbers} if own.keys() == given.keys() else {**sizes, **numbers}
    return replace(node, args=_args(node.args, whole.args), kwargs=tuple(kwargs.items()))


def _args(own: tuple[Arg, ...], whole: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """Return the arguments with the whole batch's numbers, even if one of the two omits a default."""
    found: list[Arg] = []
    for place in range(max(len(own), len(whole))):
        mine, theirs = (args[place] if place < len(args) else None for args in (own, whole))
        is_number = _is_number(mine) or _is_number(theirs)
        if place < len(whole) if is_number else place < len(own):
            found.append(theirs if is_number else mine)
    return tuple(found)


def _is_number(arg: Arg) -> bool:
    return isinstance(arg, int | float) and not isinstance(arg, bool)
