"""What autograd keeps of every operator of a graph for the backward.

Operators are asked in the graph's order, each under the strides that those before it gave its operands:
whether a reshape is a view or a copy, and what attention copies, is a matter of strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from autopar.capture.operator_facts import OperatorFacts, Strides, ask, flows
from autopar.ir.graph import Graph, Node, Saved, Tensor
from autopar.ops.operators import bind

Known = dict[object, OperatorFacts]
"""Each kind of operator, arguments, shapes and strides is asked once."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node as somebody calls it: with these operands, some of them laid out anew, row by row."""

    node: Node
    operands: Mapping[str, Tensor]
    reached: Set[str]
    """The tensors of the graph at which gradients arrive."""
    anew: Set[str] = frozenset()

    @property
    def arriving(self) -> tuple[int, ...]:
        """The outputs at which they do."""
        outputs = enumerate(self.node.outputs)
        return tuple(place for place, tensor in outputs if tensor.name in self.reached)


@dataclass(frozen=True, eq=False)
class Kept(Mapping[str, Saved]):
    """By node name, of whole tensors."""

    found: Mapping[str, Saved]
    kind: str
    """Of device."""
    known: Known

    def of(self, calls: Iterable[Call]) -> Mapping[str, Saved]:
        """The same of other calls of nodes, in the graph's order."""
        return _asked(calls, self.kind, self.known)

    def __getitem__(self, name: str) -> Saved:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def saved(graph: Graph, kind: str = "cpu", known: Known | None = None) -> Kept:
    """On a kind of device; `known` remembers what was asked from graph to graph."""
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
    """The arguments with operand numbers for names: equal for equal calls."""
    numbered = {name: f"<{place}>" for place, name in enumerate(dict.fromkeys(node.operands))}
    return repr(
        (
            bind(node.args, numbered.__getitem__),
            [(k, bind(v, numbered.__getitem__)) for k, v in node.kwargs],
        )
    )
