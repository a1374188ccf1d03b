"""What operators keep under a plan, whose conversions lay out anew what they move."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.capture.saved import Kept
from autopar.graph import Graph, Saved
from autopar.plans.plan import Conversion, OpSharding
from autopar.pricing.keeps import moves_nothing
from autopar.pricing.recomputed import Form


def relaid(
    saved: Mapping[str, Saved],
    graph: Graph,
    shardings: Mapping[str, OpSharding],
    conversions: tuple[Conversion, ...],
) -> Mapping[str, Saved]:
    """What is sent or copied arrives in row-major order, whatever strides it has in the graph.

    Of a batch between two that were captured nothing can be asked: there it stays what it is.
    """
    if not isinstance(saved, Kept):
        return saved
    anew: set[Form] = set()
    for c in conversions:
        if not moves_nothing(c) or (c.tensor, c.source) in anew:
            anew.add((c.tensor, c.target))
    readings = {
        (node.name, name)
        for node in graph.nodes
        for name, form in zip(node.operands, shardings[node.name].inputs, strict=True)
        if (name, form) in anew
    }
    return saved.laid_out(graph, readings)
