"""How an example of an operator is written, and made into a graph.

`t` is a tensor with gradient, `n` one without.  A call with a name ending in ``square`` has equal
sizes, so that a rule with two factors swapped still fits its shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from autopar.capture.builder import Builder, looks_like
from autopar.ir.graph import DType, Graph, Node, Origin, Ref
from autopar.ops.operators import bind, callable_of
from tests.rules.values import draw


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor argument; the same object twice is the same tensor twice."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    gradient: bool = True


@dataclass(frozen=True)
class Example:
    """An operator call."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """What the test is called."""
        return f"{self.op.split('.', 1)[1]}{':' if self.note else ''}{self.note}"


def t(*shape: int) -> Given:
    """A tensor with gradient."""
    return Given(shape)


def n(*shape: int, dtype: str = "float64") -> Given:
    """A tensor without gradient."""
    return Given(shape, dtype, False)


def ids(*shape: int) -> Given:
    """Indices or class labels."""
    return n(*shape, dtype="int64")


def mask(*shape: int) -> Given:
    """Booleans."""
    return n(*shape, dtype="bool")


def build(example: Example) -> tuple[Graph, Node]:
    """The call as the one operator of a graph, with the flags that capture would give it."""
    builder = Builder()
    names: dict[Given, str] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, Given):
            if value not in names:
                names[value] = f"t{len(names)}"
                _leaf(builder, names[value], value)
            return Ref(names[value])
        return tuple(map(argument, value)) if isinstance(value, (tuple, list)) else value

    op = (
        example.op
        if example.op.count(".") > 1 or "autopar" in example.op
        else f"{example.op}.default"
    )
    args = tuple(map(argument, example.args))
    kwargs = tuple((key, argument(value)) for key, value in example.kwargs.items())
    probe = Node("made", op, args, kwargs)
    made = _values(probe, builder)
    cut = ("out1", "out2") if op == "autopar.batch_norm" else ()
    builder.emit(op, args, kwargs, made, Origin(), gradient=True, cut=cut)
    graph = Graph(example.name, tuple(builder.nodes), None)
    return graph, graph.nodes[-1]


def _leaf(builder: Builder, name: str, given: Given) -> None:
    value = torch.zeros(given.shape, dtype=getattr(torch, given.dtype))
    tensor = looks_like(name, value, given.gradient)
    kind = "parameter" if given.gradient else "input"
    builder.leaf(Node(name, kind, (), (), (tensor,), name))


def _values(probe: Node, builder: Builder) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    operands = draw(probe, tuple(builder.tensors[name] for name in probe.operands), generator)
    values = iter(operands)
    args = [bind(arg, lambda _: next(values)) for arg in probe.args]
    kwargs = {key: bind(arg, lambda _: next(values)) for key, arg in probe.kwargs}
    made = callable_of(probe.op)(*args, **kwargs)
    parts = made if isinstance(made, (tuple, list)) else (made,)
    return {f"out{place}": part for place, part in enumerate(parts)}


def call(op: str, *args: Any, note: str = "", **kwargs: Any) -> Example:
    """An example of one of torch's operators, or of another library's by its full name."""
    named = op.startswith(("autopar.", "autopar_static.", "transformers."))
    return Example(op if named else f"aten.{op}", args, kwargs, note)


F64, INT = DType("float64"), DType("int64")
