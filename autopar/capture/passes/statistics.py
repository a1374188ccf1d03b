"""Casts a batch norm's weights to the dtype of its running statistics, which may be wider.

In low precision, buffers may keep a wider dtype than weights. Kernels accept a low-precision input
with wide weights and statistics, but not weights and statistics of different widths.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.capture.passes.rewriting import Tensors, rewrite, tensor_of
from autopar.ir.graph import Arg, DType, Graph, Node, Ref

NORMS = ("autopar.batch_norm", "aten.batch_norm.default")
FACTORS, MEAN = (1, 2), 3
"""Positions of weight and bias, and of the running mean."""


def widen_norms(graph: Graph) -> Graph:
    """Insert casts where the dtypes of weights and statistics differ."""
    return rewrite(graph, _widened)


def _widened(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    mean = tensor_of(node.args[MEAN], tensors) if node.op in NORMS else None
    if mean is None:
        return None
    casts: list[Node] = []
    args: list[Arg] = list(node.args)
    for place in FACTORS:
        factor = tensor_of(args[place], tensors)
        if factor is None or factor.dtype == mean.dtype:
            continue
        wide = replace(factor, name=f"{node.name}.{place}", dtype=mean.dtype)
        given: tuple[Arg, ...] = (args[place], DType(mean.dtype))
        casts.append(Node(wide.name, "aten.to.dtype", given, (), (wide,), "", node.origin))
        args[place] = Ref(wide.name)
    return (*casts, replace(node, args=tuple(args))) if casts else None
