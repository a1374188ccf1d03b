"""Builds a graph: appends nodes and tracks which tensors carry a gradient."""

from __future__ import annotations

from typing import Any, cast

import torch

from autopar.ir.graph import Arg, DType, Node, Origin, Ref, Tensor, short

WITHOUT_GRADIENT = ("_like", "new_zeros", "new_ones", "new_full", "new_empty", "detach")
"""Endings of operators that read only a tensor's shape, or that cut the gradient."""
OVERWRITES = {"copy", "fill", "zero"}
"""Operators whose result does not depend on the values of their first operand."""
LIKE_ANOTHER = {"type_as", "to", "view_as", "reshape_as", "expand_as"}
"""Operators that read only the shape or dtype of a second operand."""
EACH_FOR_ITSELF = {"broadcast_tensors", "meshgrid"}
"""Operators whose outputs depend on one operand each, in order."""
Kwargs = tuple[tuple[str, Arg], ...]


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


class Builder:
    """Collects nodes in order and puts `detach` nodes at the borders of regions without gradient."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self._detached: dict[str, str] = {}
        self._cast: dict[tuple[str, str], str] = {}
        self._parameters: set[str] = set()

    def leaf(self, node: Node) -> None:
        """Append a parameter, buffer, input or constant."""
        self._add(node)
        if node.op == "parameter":
            self._parameters.add(node.name)

    def emit(
        self,
        op: str,
        args: tuple[Arg, ...],
        kwargs: Kwargs,
        values: dict[str, torch.Tensor],
        origin: Origin,
        *,
        gradient: bool,
        cut: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """Append an operator with outputs like `values`; outputs in `cut` carry no gradient."""
        if not gradient:
            args = cast("tuple[Arg, ...]", self.without_gradient(args, origin))
            kwargs = tuple((key, self.without_gradient(arg, origin)) for key, arg in kwargs)
        node = Node(next(iter(values)), op, args, kwargs, (), "", origin)
        flows = self._flows(short(op), node.operands, len(values))
        outputs = tuple(
            looks_like(name, value, flow and name not in cut)
            for (name, value), flow in zip(values.items(), flows, strict=True)
        )
        self._add(Node(node.name, op, args, kwargs, outputs, "", origin))
        return tuple(values)

    def _flows(self, op: str, operands: tuple[str, ...], outputs: int) -> tuple[bool, ...]:
        """Return for each output whether a gradient reaches it, as far as the operator's name tells."""
        carries = [self.tensors[operand].differentiable for operand in operands]
        if op in EACH_FOR_ITSELF and len(operands) == outputs:
            return tuple(carries)
        if op.endswith(WITHOUT_GRADIENT):
            return (False,) * outputs
        if op in LIKE_ANOTHER:
            carries = carries[:1]
        return (any(carries[1:] if op in OVERWRITES else carries),) * outputs

    def without_gradient(self, arg: Arg, origin: Origin) -> Arg:
        """Return the argument with differentiable tensors detached; each tensor is detached once."""
        if isinstance(arg, tuple):
            return tuple(self.without_gradient(item, origin) for item in arg)
        if not isinstance(arg, Ref) or not self.tensors[arg.name].differentiable:
            return arg
        if arg.name not in self._detached:
            name = f"{arg.name}.detached"
            source = self.tensors[arg.name]
            tensor = Tensor(name, source.shape, source.dtype, False)
            self._add(Node(name, "aten.detach.default", (arg,), (), (tensor,), "", origin))
            self._detached[arg.name] = name
        return Ref(self._detached[arg.name])

    def cast(self, arg: Ref, dtype: torch.dtype | None, origin: Origin, *, gradient: bool) -> Ref:
        """Return the tensor in another dtype.

        As under autocast, a parameter is cast once, but any other tensor is cast again for each
        use. The gradients of those casts are then accumulated in the wide dtype.
        """
        if dtype is None or dtype_name(dtype) == self.tensors[arg.name].dtype:
            return arg
        if not gradient:
            arg = cast(Ref, self.without_gradient(arg, origin))
        narrow = dtype_name(dtype)
        key = (arg.name, narrow)
        if key not in self._cast or arg.name not in self._parameters:
            source = self.tensors[arg.name]
            name = f"{arg.name}.{len(self.nodes)}"
            tensor = Tensor(name, source.shape, narrow, source.differentiable)
            self._add(Node(name, "aten.to.dtype", (arg, DType(narrow)), (), (tensor,), "", origin))
            self._cast[key] = name
        return Ref(self._cast[key])

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        self.tensors.update((tensor.name, tensor) for tensor in node.outputs)


def looks_like(name: str, value: Any, differentiable: bool) -> Tensor:
    """Return a named tensor with a recorded value's shape and dtype.

    Backward formulas return None for a gradient that is not requested. Nothing reads it, so it is
    an empty tensor here.
    """
    if value is None:
        return Tensor(name, (0,), dtype_name(torch.get_default_dtype()), False)
    floating = value.is_floating_point() or value.is_complex()
    return Tensor(name, tuple(value.shape), dtype_name(value.dtype), differentiable and floating)
