"""Determines what the operators of one rank save under a plan, by capturing each on its local shards.

Dividing the bytes of the unsharded operator would be wrong.  Expanding a dim of local size one is a
view, where expanding the whole one is a copy.  An operator's peak is no fixed share of the unsharded
one's.  Conversions that send or copy produce row-major tensors, whatever the strides in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autopar.capture.saved import Call, Kept
from autopar.ir.graph import Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.memory.attention_rows import of_rows
from autopar.memory.recompute_set import Form
from autopar.memory.saved_tensors import moves_nothing
from autopar.memory.shards import extra_nbytes, split
from autopar.plans.decisions import Conversion, OpSharding
from autopar.rules import on_shards, variant_memory
from autopar.rules.variants import ALONG_SEQUENCE


def of_rank(
    saved: Mapping[str, Saved],
    graph: Graph,
    shardings: Mapping[str, OpSharding],
    conversions: tuple[Conversion, ...],
    mesh: Mesh,
) -> Mapping[str, Saved]:
    """Return what each node saves on one rank, by node name.

    For operators that cannot be captured locally, the unsharded bytes are divided.  These are operators
    with another local implementation (`OpSharding.variant`), and batch sizes between two captured ones.
    """
    asked: Mapping[str, Saved] = {}
    if isinstance(saved, Kept):
        asked = saved.of(_calls(graph, shardings, _anew(conversions), mesh))
    left = {name: whole for name, whole in saved.items() if name not in asked}
    every = {**divided(left, graph, shardings, mesh), **asked}
    kind = saved.kind if isinstance(saved, Kept) else ""
    for name, sharding in shardings.items():
        if sharding.variant in ALONG_SEQUENCE and name in every:
            every[name] = of_rows(every[name], graph.node[name], sharding, graph, mesh, kind)
    return every


def divided(
    saved: Mapping[str, Saved], graph: Graph, shardings: Mapping[str, OpSharding], mesh: Mesh
) -> dict[str, Saved]:
    """Divide what the unsharded operators save among the ranks; add what local implementations do."""
    return {
        name: _share(whole, graph.node[name], shardings[name], graph, mesh)
        for name, whole in saved.items()
        if name in shardings
    }


def _share(whole: Saved, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> Saved:
    ways = split(sharding, mesh)
    if ways == 1:
        return whole
    also = variant_memory(node, sharding, graph, mesh)
    return replace(
        whole,
        extra_nbytes=extra_nbytes(whole, node, sharding, graph, mesh),
        like=(),
        forward_nbytes=max(whole.forward_nbytes // ways, also.forward),
        backward_nbytes=max(whole.backward_nbytes // ways, also.backward),
        early_nbytes=whole.early_nbytes // ways,
        cached_nbytes=whole.cached_nbytes // ways,
        spare=tuple(nbytes // ways for nbytes in whole.spare),
    )


def _calls(
    graph: Graph, shardings: Mapping[str, OpSharding], anew: set[Form], mesh: Mesh
) -> Iterator[Call]:
    """Yield the local calls of the operators that are applied to shards unchanged."""
    for node in graph.nodes:
        sharding = shardings[node.name]
        found = on_shards(node, sharding, graph, mesh, alike=ALONG_SEQUENCE)
        if found is not None:
            forms = zip(node.operands, sharding.inputs, strict=True)
            yield Call(*found, graph.reached, frozenset(form[0] for form in forms if form in anew))


def _anew(conversions: tuple[Conversion, ...]) -> set[Form]:
    """Return the forms that conversions have newly allocated, which are in row-major order."""
    found: set[Form] = set()
    for c in conversions:
        if not moves_nothing(c) or (c.tensor, c.source) in found:
            found.add((c.tensor, c.target))
    return found
