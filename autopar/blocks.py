"""Numbered modules as blocks: what is written as one class, and recomputed as one in the backward."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from autopar.graph import Graph, Node, Origin, Saved, short

Recompute = Literal["none", "selective", "full"]
"""What a block does in the backward: use what it kept, make all but products and attention again, or
all of it (Chen et al. 2016; Korthikanti et al. 2022, section 5)."""
MODES: tuple[Recompute, ...] = get_args(Recompute)
FEWEST = 8
"""Statements of a block that is worth a class of its own."""

_CONTAINER = re.compile(r"(?P<prefix>.*?)\.(?P<index>\d+)(?:\.|$)")
_DEAR = frozenset(
    [
        "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d",
        "convolution", "scaled_dot_product_attention",
    ]
)  # fmt: skip


def block_of(origin: Origin) -> tuple[str, int] | None:
    """The outermost numbered module that a node belongs to: ``("transformer.h", 3)``."""
    match = _CONTAINER.match(origin.module)
    return (match["prefix"], int(match["index"])) if match else None


def is_dear(node: Node) -> bool:
    """Whether selective recomputation keeps the result: matrix products, convolutions, attention."""
    return short(node.op) in _DEAR


def is_hub(node: Node, graph: Graph) -> bool:
    """Made outside all blocks and read inside: converted outside, so that blocks look alike."""
    if node.op == "parameter" or block_of(node.origin) is not None:
        return False
    return any(
        block_of(reader.origin) is not None
        for tensor in node.outputs
        for reader in graph.consumers[tensor.name]
    )


@dataclass(frozen=True)
class Block:
    """The operators of one numbered module that runs in one piece."""

    path: str
    nodes: tuple[Node, ...]

    def run_again(self, saved: Mapping[str, Saved]) -> tuple[Node, ...]:
        """The operators that a recomputation runs: it ends with the last one that keeps anything."""
        keeping = [
            i for i, node in enumerate(self.nodes) if saved.get(node.name, Saved()) != Saved()
        ]
        return self.nodes[: keeping[-1] + 1] if keeping else ()


def blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks that may be recomputed: numbered children, each in one piece, of a common parent.

    In a stage of a pipeline one is enough: its siblings are in other stages.
    """
    nodes = [
        node for node in graph.nodes if node.op not in ("parameter", "buffer", "input", "received")
    ]
    runs = [
        (where, tuple(run))
        for where, run in itertools.groupby(nodes, key=lambda node: block_of(node.origin))
        if where is not None
    ]
    pieces = Counter(where for where, _ in runs)
    children = Counter(prefix for prefix, _ in pieces)
    fewest = 1 if graph.is_stage else 2
    return tuple(
        Block(f"{prefix}.{index}", run)
        for (prefix, index), run in runs
        if pieces[prefix, index] == 1 and children[prefix] >= fewest and len(run) >= FEWEST
    )
