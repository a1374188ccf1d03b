"""Blocks: numbered modules that are emitted as one class and recomputed together in the backward."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Origin, Saved, short

Recompute = Literal["none", "selective", "full"]
"""Recomputation mode of a block in the backward: use the saved activations, recompute all except
matrix products and attention, or recompute everything (Chen et al. 2016; Korthikanti et al. 2022,
section 5)."""
MODES: tuple[Recompute, ...] = get_args(Recompute)
FEWEST = 8
"""Minimum number of operators for a module to count as a block with its own class."""

_CONTAINER = re.compile(r"(?P<prefix>.*?)\.(?P<index>0|[1-9][0-9]*)(?:\.|$)")
_DEAR = frozenset(
    [
        "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d",
        "convolution", "scaled_dot_product_attention",
    ]
)  # fmt: skip


def block_of(origin: Origin) -> tuple[str, int] | None:
    """Return the outermost numbered module that contains a node, such as ``("transformer.h", 3)``."""
    return _numbered_in(origin.module)


@lru_cache(maxsize=1 << 16)
def _numbered_in(module: str) -> tuple[str, int] | None:
    """Return the outermost numbered module of a path; cached, as few paths are looked up often."""
    match = _CONTAINER.match(module)
    return (match["prefix"], int(match["index"])) if match else None


def runs(graph: Graph) -> list[tuple[tuple[str, int] | None, list[int]]]:
    """Return the runs of consecutive statements of one block, or of none: positions of their nodes.

    Parameters, buffers and inputs have no statement in emitted code.
    """
    said = [
        (place, node)
        for place, node in enumerate(graph.nodes)
        if node.op not in ("parameter", "buffer", "input", "received")
    ]
    grouped = itertools.groupby(said, key=lambda pair: block_of(pair[1].origin))
    return [(where, [place for place, _ in run]) for where, run in grouped]


def is_expensive(node: Node) -> bool:
    """Return whether selective recomputation keeps the result (matmul, convolution, attention)."""
    return short(node.op) in _DEAR


def is_hub(node: Node, graph: Graph) -> bool:
    """Return whether the node is outside all blocks and read inside some.

    Its outputs are converted outside the blocks, so that the blocks have identical code.
    """
    if node.op == "parameter" or block_of(node.origin) is not None:
        return False
    return any(
        block_of(reader.origin) is not None
        for tensor in node.outputs
        for reader in graph.consumers[tensor.name]
    )


@dataclass(frozen=True)
class Block:
    """The operators of one numbered module, which are consecutive in the graph."""

    path: str
    nodes: tuple[Node, ...]

    def run_again(self, saved: Mapping[str, Saved]) -> tuple[Node, ...]:
        """Return the operators that a recomputation runs: up to the last one that saves anything."""
        keeping = [
            i
            for i, node in enumerate(self.nodes)
            if not saved.get(node.name, SAVES_NOTHING).is_nothing
        ]
        return self.nodes[: keeping[-1] + 1] if keeping else ()


_Numbered = Mapping[tuple[str, int], Sequence[tuple[Node, ...]]]


def blocks(graph: Graph) -> tuple[Block, ...]:
    """Return the blocks that may be recomputed: numbered children of a common parent.

    The operators of each are consecutive.  A parent needs at least two such children.  In a pipeline
    stage one is enough, since its siblings may be in other stages.
    """
    numbered, state = _numbered(graph), _state(graph)
    return tuple(
        Block(f"{prefix}.{index}", runs[0])
        for (prefix, index), runs in numbered.items()
        if not _unfit(prefix, runs, numbered, graph, state) and len(runs[0]) >= FEWEST
    )


def no_blocks(graph: Graph) -> tuple[tuple[str, str], ...]:
    """Return (path, reason) of numbered modules that are large enough but cannot be recomputed."""
    numbered, state = _numbered(graph), _state(graph)
    return tuple(
        (f"{prefix}.{index}", why)
        for (prefix, index), runs in numbered.items()
        if (why := _unfit(prefix, runs, numbered, graph, state)) and sum(map(len, runs)) >= FEWEST
    )


def _numbered(graph: Graph) -> _Numbered:
    """Return every numbered module with its runs of consecutive operators."""
    nodes = [
        node for node in graph.nodes if node.op not in ("parameter", "buffer", "input", "received")
    ]
    found: defaultdict[tuple[str, int], list[tuple[Node, ...]]] = defaultdict(list)
    for where, run in itertools.groupby(nodes, key=lambda node: block_of(node.origin)):
        if where is not None:
            found[where].append(tuple(run))
    return found


def _unfit(
    prefix: str,
    runs: Sequence[tuple[Node, ...]],
    numbered: _Numbered,
    graph: Graph,
    state: Mapping[str, str],
) -> str:
    """Return why a numbered module is not a block, apart from its size; "" if it is one."""
    if len(runs) > 1:
        return f"runs in {len(runs)} pieces"
    siblings = sum(other == prefix for other, _ in numbered)
    if siblings < (1 if graph.is_stage else 2):
        return "has no numbered sibling"
    moved = next((state[node.name] for node in runs[0] if node.name in state), "")
    return f"reads buffer {moved}, which forward changes" if moved else ""


def _state(graph: Graph) -> Mapping[str, str]:
    """Map the operators that read a buffer which forward changes, and affect a result, to the buffer.

    A recomputation in the backward would read the changed value.  A batch norm in training is exempt: it
    only updates its statistics.
    """
    changed = {name for name, _ in graph.mutations}
    if not changed:
        return {}
    matters = {graph.loss, *graph.sends, *(name for _, name in graph.outputs)}
    for node in reversed(graph.nodes):
        if any(tensor.name in matters for tensor in node.outputs):
            matters.update(node.operands)
    return {
        reader.name: leaf.target
        for leaf in graph.leaves("buffer")
        if leaf.target in changed
        for reader in graph.consumers[leaf.outputs[0].name]
        if reader.op != "autopar.batch_norm" and any(t.name in matters for t in reader.outputs)
    }
