"""What attention of a split sequence saves and allocates (`autopar/runtime/sequence_attention.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.ir.graph import Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding
from autopar.rules.variants import RING


def of_rows(
    plain: Saved, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh, kind: str
) -> Saved:
    """Return what one rank's rows save; `plain` is attention on the same shards, `kind` the device's.

    Besides queries, keys, values and result these are the rows that came from another rank, their
    result, and a logarithm of each row's sum.
    """
    sizes = _Sizes.of(node, sharding, graph, mesh)
    extra = sizes.swapped * (sizes.width + sizes.made) * sizes.itemsize + sizes.sums
    ring = sharding.variant == RING
    return replace(
        plain,
        operands=(0, 1, 2),
        outputs=(0,),
        extra_nbytes=extra,
        like=(),
        copied=(),
        forward_nbytes=sizes.ring_forward if ring else sizes.forward,
        backward_nbytes=sizes.ring_backward(kind) if ring else sizes.backward(kind),
        early_nbytes=0,
        cached=(0,),
        cached_nbytes=extra,
    )


@dataclass(frozen=True)
class _Sizes:
    """Rows of all heads that are computed here and exchanged, keys, widths, and bytes per element."""

    kept: int
    swapped: int
    heads: int
    shared: int
    keys: int
    """Keys of one head, of all samples."""
    before: int
    """The most of these that some half of the rows sees in full."""
    width: int
    made: int
    itemsize: int

    @classmethod
    def of(cls, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> _Sizes:
        """Return those of one rank."""
        query, key, value = (
            form.local_shape(graph.tensors[name].shape, mesh)
            for name, form in zip(node.operands, sharding.inputs, strict=True)
        )
        samples, heads, rows, width = query
        swapped, whole = rows // 2, sharding.variant == RING
        return cls(
            samples * heads * (rows - swapped),
            samples * heads * swapped,
            heads,
            key[1],
            samples * key[2],
            samples * (key[2] if whole else key[2] - swapped),
            width,
            value[3],
            node.outputs[0].itemsize,
        )

    @property
    def wide(self) -> int:
        """Bytes of an element of what is merged."""
        return max(self.itemsize, 4)

    @property
    def sums(self) -> int:
        """Bytes of the logarithms."""
        return (self.kept + self.swapped) * self.wide

    @property
    def forward(self) -> int:
        """Two parts, the same in a wide dtype, and their mean; or the halves that are joined."""
        result = (self.kept + self.swapped) * self.made * self.itemsize
        return max(result + self.sums, self._merging - result)

    @property
    def _merging(self) -> int:
        casts = 3 if self.wide > self.itemsize else 1
        return self.kept * self.made * (2 * self.itemsize + casts * self.wide)

    @property
    def _pair(self) -> int:
        """Elements of keys and values together."""
        return self.keys * self.shared * (self.width + self.made)

    @property
    def ring_forward(self) -> int:
        """Two blocks of keys and values besides; the halves are wide until they are joined."""
        result = (self.kept + self.swapped) * self.made
        halves = result * (self.wide if self.wide > self.itemsize else 0)
        return 2 * self._pair * self.itemsize + halves + self.forward

    def _of_keys(self, kind: str) -> int:
        """Gradients of keys are made for each head of the queries, and then added."""
        repeats = (2 if kind != "cuda" else 1) * (self.heads != self.shared)
        apart = self.before * (self.width + self.made) * self.itemsize
        return apart * (self.shared + self.heads * repeats)

    def backward(self, kind: str) -> int:
        """Gradients of some keys and of halves of the rows."""
        rows = 2 * self.kept * self.width + self.swapped * self.made
        return self._of_keys(kind) + rows * self.itemsize

    def ring_backward(self, kind: str) -> int:
        """Keys and values, and two blocks of their gradients in a wide dtype besides."""
        rows = (self.kept + self.swapped) * self.width * self.wide
        blocks = self._pair * (2 * self.itemsize + self.wide)
        return blocks + rows + self.backward(kind)
