"""Reduces a graph to the outputs that a user requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.capture.passes.dead import drop_dead
from autopar.errors import InputError
from autopar.ir.graph import Graph


def with_outputs(graph: Graph, wanted: Sequence[str]) -> Graph:
    """Return the graph with only the wanted outputs; with all if it has no loss and none is named."""
    available = dict(graph.outputs)
    for name in wanted:
        if name not in available:
            raise InputError(f"{graph.name} has no output {name!r}; it has {', '.join(available)}.")
    if graph.loss is None and not wanted:
        return graph
    kept = tuple((path, tensor) for path, tensor in graph.outputs if path in wanted)
    return drop_dead(replace(graph, outputs=kept))


__all__ = ["with_outputs"]
