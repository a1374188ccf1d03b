"""What autograd keeps of every operator of a graph for the backward.

Operators are asked in the graph's order, each under the strides that those before it gave its operands:
whether a reshape is a view or a copy, and what attention copies, is a matter of strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from autopar.capture.asked import Asked, Strides, ask, flows
from autopar.graph import Graph, Node, Saved
from autopar.operators import bind

Reading = tuple[str, str]
"""A node and one of the tensors that it reads."""
Known = dict[object, Asked]
"""Each kind of operator, arguments, shapes and strides is asked once."""


@dataclass(frozen=True)
class Kept(Mapping[str, Saved]):
    """By node name; each asked under the graph's own strides, and again where a plan has others."""

    found: Mapping[str, Saved]
    turned: Set[str]
    """The tensors that do not lie in row-major order."""
    kind: str
    """Of device."""
    known: Known

    def laid_out(self, graph: Graph, anew: Set[Reading]) -> Mapping[str, Saved]:
        """The same of a graph, where somebody reads these tensors in row-major order."""
        if not any(tensor in self.turned for _, tensor in anew):
            return self
        return _asked(graph, self.kind, self.known, anew)

    def __getitem__(self, name: str) -> Saved:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def saved(graph: Graph, kind: str = "cpu", known: Known | None = None) -> Kept:
    """On a kind of device; `known` remembers what was asked from graph to graph."""
    return _asked(graph, kind, {} if known is None else known, frozenset())


def _asked(graph: Graph, kind: str, known: Known, anew: Set[Reading]) -> Kept:
    found: dict[str, Saved] = {}
    strides: dict[str, Strides | None] = {}
    for node in graph.nodes:
        if node.is_leaf:
            continue
        operands = {name: graph.tensors[name] for name in node.operands}
        lying = {
            name: None if (node.name, name) in anew else strides.get(name) for name in operands
        }
        shapes = tuple((t.shape, t.dtype, t.differentiable) for t in operands.values())
        key = (kind, node.op, _numbered(node), shapes, tuple(lying.values()), flows(node))
        if key not in known:
            known[key] = ask(node, operands, lying, kind)
        strides |= zip((t.name for t in node.outputs), known[key].strides, strict=True)
        found[node.name] = known[key].saved
    return Kept(found, {name for name, told in strides.items() if told}, kind, known)


def _numbered(node: Node) -> str:
    """The arguments with operand numbers for names: equal for equal calls."""
    numbered = {name: f"<{place}>" for place, name in enumerate(dict.fromkeys(node.operands))}
    return repr(
        (
            bind(node.args, numbered.__getitem__),
            [(k, bind(v, numbered.__getitem__)) for k, v in node.kwargs],
        )
    )
