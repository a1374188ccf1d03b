"""Determines what autograd saves for the backward, for every operator of a graph.

Operators are measured in the graph's order, each with the strides that the operators before it gave
to its operands. Strides decide whether a reshape is a view or a copy, and what attention copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from autopar.capture.operator_facts import OperatorFacts, Strides, ask, flows
from autopar.ir.graph import Graph, Node, Saved, Tensor
from autopar.ops.operators import bind

Known = dict[object, OperatorFacts]
"""Measurements by operator, arguments, shapes and strides; each combination is measured once."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a node with given operands, some of them copied to row-major order."""

    node: Node
    operands: Mapping[str, Tensor]
    reached: Set[str]
    """The tensors of the graph at which gradients arrive."""
    anew: Set[str] = frozenset()

    @property
    def arriving(self) -> tuple[int, ...]:
        """The outputs at which gradients arrive."""
        outputs = enumerate(self.node.outputs)
        return tuple(place for place, tensor in outputs if tensor.name in self.reached)


@dataclass(frozen=True, eq=False)
class Kept(Mapping[str, Saved]):
    """What autograd saves, by node name, for unsharded tensors."""

    found: Mapping[str, Saved]
    kind: str
    """Kind of device."""
    known: Known

    def of(self, calls: Iterable[Call]) -> Mapping[str, Saved]:
        """Return the same for other calls of nodes, in the graph's order."""
        return _asked(calls, self.kind, self.known)

    def __getitem__(self, name: str) -> Saved:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def saved(graph: Graph, kind: str = "cpu", known: Known | None = None) -> Kept:
    """Return what autograd saves on a kind of device; `known` is a cache that graphs may share."""
    known = {} if known is None else known
    calls = (
        Call(node, {name: graph.tensors[name] for name in node.operands}, graph.reached)
        for node in graph.nodes
        if not node.is_leaf
    )
    return Kept(_asked(calls, kind, known), kind, known)


def _asked(calls: Iterable[Call], kind: str, known: Known) -> dict[str, Saved]:
    found: dict[str, Saved] = {}
    strides: dict[str, Strides | None] = {}
    for call in calls:
        node, operands = call.node, call.operands
        lying = {name: None if name in call.anew else strides.get(name) for name in operands}
        shapes = tuple((t.shape, t.dtype, t.differentiable) for t in operands.values())
        backward = flows(node), call.arriving
        key = (kind, node.op, _numbered(node), shapes, tuple(lying.values()), backward)
        if key not in known:
            known[key] = ask(node, operands, lying, call.arriving, kind)
        strides |= zip((t.name for t in node.outputs), known[key].strides, strict=True)
        found[node.name] = known[key].saved
    return found


def _numbered(node: Node) -> str:
    """Return the arguments with operand numbers instead of names: equal for equal calls."""
    numbered = {name: f"<{place}>" for place, name in enumerate(dict.fromkeys(node.operands))}
    return repr(
        (
            bind(node.args, numbered.__getitem__),
            [(k, bind(v, numbered.__getitem__)) for k, v in node.kwargs],
        )
    )
