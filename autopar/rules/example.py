"""Makes an example call of an operator, to show its rule and to prove it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import torch

from autopar.errors import RuleError
from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor
from autopar.ops.operators import bind, callable_of
from autopar.rules import _torch

SHAPES = ((6, 12), (18, 12), (12, 18), (6, 12, 18), (6, 12, 18, 24), (18, 12, 3, 3), (12,))
"""Shapes tried for tensors; equal shapes for all tensors are tried first."""
NUMBERS: dict[str, tuple[Arg, ...]] = {
    "int": (1,), "List[int]": ((12,), (1,), (6, 12)), "float": (0.5,), "bool": (False,),
    "number": (2.0,), "str": ("mean",),
}  # fmt: skip
MOST = 4000


def example(op: str, shapes: tuple[tuple[int, ...], ...] | None = None) -> tuple[Graph, Node]:
    """Return a call on float tensors of the given shapes, or of the first that the operator accepts."""
    kinds = _required(op, len(shapes) if shapes is not None else None)
    tensors = [i for i, kind in enumerate(kinds) if kind.startswith("Tensor")]
    if shapes is not None and len(tensors) != len(shapes):
        raise RuleError(f"{op} reads {len(tensors)} tensors; shapes are given for {len(shapes)}.")
    last: RuleError | None = None
    for picked in _guesses(kinds, tensors, shapes):
        try:
            return _call(op, picked)
        except RuleError as error:
            last = error
    raise RuleError(
        f"No call of {op} could be made up: give --shapes, or --model with a model that calls it"
        + (f" ({str(last).splitlines()[0]})." if last else ".")
    )


def _required(op: str, count: int | None) -> list[str]:
    """Return the types of required arguments: those without default, and tensors up to `count`."""
    kinds: list[str] = []
    for _, kind, has_default in _torch.tensor_arguments(callable_of(op)):
        known = sum(kind.startswith("Tensor") for kind in kinds)
        wanted = (
            kind.startswith(("Tensor", "Optional[Tensor]")) and count is not None and known < count
        )
        if has_default and not wanted:
            break
        kinds.append(kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Opt") else kind)
    return kinds


def _guesses(
    kinds: list[str], tensors: list[int], shapes: tuple[tuple[int, ...], ...] | None
) -> Iterator[tuple[Arg | Tensor, ...]]:
    every = [shapes] if shapes is not None else product(SHAPES, repeat=len(tensors))
    alike = sorted(islice(every, MOST), key=lambda picked: len(set(picked)))
    lists = NUMBERS["List[int]"] if "List[int]" in kinds else (None,)
    for dtype, numbers in product(("float64", "int64"), lists):
        for picked in alike:
            made = iter(picked)
            call: list[Arg | Tensor] = []
            for place, kind in enumerate(kinds):
                if place in tensors:
                    # Index tensors follow the tensor that they index.
                    used = dtype if place != tensors[0] else "float64"
                    call.append(Tensor(f"x{place}", next(made), used, used == "float64"))
                else:
                    call.append(numbers if kind == "List[int]" else NUMBERS.get(kind, (None,))[0])
            yield tuple(call)


def _call(op: str, given: tuple[Arg | Tensor, ...]) -> tuple[Graph, Node]:
    operands = tuple(item for item in given if isinstance(item, Tensor))
    args = tuple(Ref(item.name) if isinstance(item, Tensor) else item for item in given)
    node = made_on(Node("made", op, args), operands)
    leaves = (Node(t.name, "input", outputs=(t,), target=t.name) for t in operands)
    return Graph("example", (*leaves, node), None), node


def made_on(node: Node, operands: tuple[Tensor, ...]) -> Node:
    """Return the node with its outputs, computed on zeros; raise `RuleError` if that fails."""
    values = {t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in operands}
    kwargs = {key: bind(value, values) for key, value in node.kwargs}
    try:
        made = callable_of(node.op)(*bind(node.args, values), **kwargs)
    except RuleError:
        raise
    except Exception as error:
        shapes = ", ".join(str(list(t.shape)) for t in operands)
        raise RuleError(f"{node.op} does not run on shapes {shapes}: {error}") from None
    every = made if isinstance(made, (tuple, list)) else (made,)
    flows = any(t.differentiable for t in operands)
    outputs = tuple(
        Tensor(f"made{i}", tuple(v.shape), str(v.dtype)[6:], flows and v.is_floating_point())
        for i, v in enumerate(every)
    )
    return Node(node.name, node.op, node.args, node.kwargs, outputs)


def overload_of(name: str) -> str:
    """Return ``aten.linear.default`` for ``linear``, ``aten::linear`` or ``linear.default``."""
    if "::" in name:
        namespace, _, rest = name.partition("::")
    else:
        first, dot, behind = name.partition(".")
        known = bool(dot and first in ("aten", "autopar"))
        namespace, rest = (first, behind) if known else ("aten", name)
    if namespace == "autopar":
        raise RuleError(f"{name} stands for several operators: name a model that calls it.")
    base, _, overload = rest.partition(".")
    every = _torch.overloads(namespace, base)
    if not every or (overload and overload not in every):
        kinds = f"; its overloads are {', '.join(every)}" if every else ""
        raise RuleError(
            f"There is no operator {name!r} here{kinds}. Import the module that registers it, or name "
            "a model that calls it."
        )
    return f"{namespace}.{base}.{overload or ('default' if 'default' in every else every[0])}"
