"""Describes the choice for one operator or parameter in standard terms, by mesh axis.

    operators    split by heads, by rows or columns of the weight, by batch, by positions, ...;
                 replicated
    parameters   split as their operators use them; or sharded and gathered, at each use or once a
                 step; or replicated

A dim is classified by sizes: the dims before it in memory are the batch, the positions, or both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autopar.explain.words import is_used_split, weights_of
from autopar.ir.graph import Graph, Node, Tensor, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import P, S, Type
from autopar.plans.decisions import OpSharding, ParameterPlan
from autopar.plans.plan import Plan

REPLICATED = "replicated"
HEADS = 4
"""Number of dims of a tensor with heads: batch, heads, positions and features per head, in any order."""
STEPS = 3
"""Maximum number of operators between a product and the view that reveals heads."""


def describe(plan: Plan, graph: Graph, node: Node) -> str:
    """Return a description such as ``split by heads on axis gpu, by batch on axis node``."""
    if node.op != "parameter":
        return describe_sharding(plan.choice[node.name], graph, node, plan.mesh)
    return _by_axis(plan.mesh, lambda axis: _stored(plan, graph, node, axis))


def describe_sharding(choice: OpSharding, graph: Graph, node: Node, mesh: Mesh) -> str:
    """Describe any sharding of an operator."""
    return _by_axis(mesh, lambda axis: _computed(choice, graph, node, axis))


def _by_axis(mesh: Mesh, phrase: Callable[[int], str]) -> str:
    axes: dict[str, list[str]] = {}
    for axis, size in enumerate(mesh.sizes):
        if size > 1:
            axes.setdefault(phrase(axis), []).append(mesh.names[axis])
    if not axes:
        return "on one device"
    count = sum(map(len, axes.values()))
    said = ", ".join(f"{phrase} on {_axes(names, count)}" for phrase, names in axes.items())
    return said.replace(", split by ", ", by ") if said.startswith("split by ") else said


def _axes(names: list[str], count: int) -> str:
    if len(names) == count and count > 1:
        return "every axis"
    return f"ax{'e' if len(names) > 1 else 'i'}s {' and '.join(names)}"


def _computed(choice: OpSharding, graph: Graph, node: Node, axis: int) -> str:
    """Describe what an operator splits on an axis."""
    made = choice.outputs[0][axis] if choice.outputs else P
    for place in weights_of(node, graph):
        kind = choice.inputs[place][axis]
        if isinstance(kind, S):
            return f"split by {_of_weight(graph, node, place, kind, made)}"
    if isinstance(made, S):
        return f"split by {dim(graph, node.outputs[0], made)}"
    for name, form in zip(node.operands, choice.inputs, strict=True):
        if isinstance(form[axis], S):
            return f"split by {dim(graph, graph.tensors[name], form[axis])} (summed)"
    return "left as partial sums" if made is P else REPLICATED


def _of_weight(graph: Graph, node: Node, place: int, kind: S, made: Type) -> str:
    """Describe how an operator splits its weight: by output features, or by the summed dim."""
    side = "rows" if kind.dim == 0 else "columns"
    if isinstance(made, S):
        return "heads" if _becomes_heads(graph, node.outputs[0]) else f"{side} of the weight"
    others = (name for i, name in enumerate(node.operands) if i != place)
    if any(_comes_from_heads(graph, graph.tensors[name]) for name in others):
        return "heads (summed)"
    if short(node.op) == "embedding" and kind.dim == 0:
        return "vocabulary (summed)"
    return f"{side} of the weight (summed)"


def _stored(plan: Plan, graph: Graph, node: Node, axis: int) -> str:
    """Describe how a parameter is stored on an axis and passed to its operators."""
    entry, tensor = plan.parameter[node.target], node.outputs[0]
    if is_used_split(plan, graph, tensor, axis):
        return _used(plan, graph, tensor, axis) + _rest(entry, axis)
    if isinstance(entry.leaf[axis], S):
        again = {c.tensor for c in plan.conversions if c.regather and c.axis == axis}
        more = ", once more for the backward," if tensor.name in again else ""
        return f"sharded and gathered at each use{more}"
    if isinstance(entry.stored[axis], S):
        return "sharded and gathered once a step"
    return REPLICATED


def _rest(entry: ParameterPlan, axis: int) -> str:
    """Describe the storage at rest of a weight that is used split, if it differs."""
    if not isinstance(entry.stored[axis], S):
        return " (replicated at rest)"
    return "" if isinstance(entry.leaf[axis], S) else " (sharded at rest, gathered once a step)"


def _used(plan: Plan, graph: Graph, tensor: Tensor, axis: int) -> str:
    """Describe the split of a weight by the first operator that reads a part of it."""
    for reader in graph.consumers[tensor.name]:
        forms = plan.choice[reader.name].inputs
        for place, (name, form) in enumerate(zip(reader.operands, forms, strict=True)):
            kind = form[axis]
            if name == tensor.name and isinstance(kind, S):
                if place in weights_of(reader, graph):
                    made = plan.choice[reader.name].outputs[0][axis]
                    return f"split by {_of_weight(graph, reader, place, kind, made)}"
                return f"split by {_side(tensor, kind)}"
    return REPLICATED


def _side(tensor: Tensor, kind: S) -> str:
    if len(tensor.shape) < 2:
        return "entries"
    return "rows" if kind.dim == 0 else "columns"


def dim(graph: Graph, tensor: Tensor, kind: Type) -> str:
    """Return the meaning of the dim that a type splits."""
    assert isinstance(kind, S)
    batch, positions = _sizes(graph)
    start = math.prod(tensor.shape[: kind.dim]) * kind.of
    if start < batch:
        return "batch"
    last = len(tensor.shape) - 1
    if len(tensor.shape) == HEADS:
        if kind.dim == last:
            return "features of each head"
        return "positions" if tensor.shape[kind.dim] == positions else "heads"
    if (kind.dim == 1 < last and tensor.shape[1] == positions) or start < batch * positions:
        return "positions"
    return "features" if kind.dim == last else f"dim {kind.dim}"


def _sizes(graph: Graph) -> tuple[int, int]:
    """Return the first two dims of the first input: batch and positions; 0 if there are none."""
    shapes = [node.outputs[0].shape for node in graph.arguments if node.outputs[0].shape]
    if not shapes:
        return 0, 0
    first = shapes[0]
    return first[0], first[1] if len(first) in (2, 3) else 0


def _becomes_heads(graph: Graph, tensor: Tensor, steps: int = STEPS) -> bool:
    """Return whether a later view splits the last dim into heads and features per head."""
    for reader in graph.consumers[tensor.name] if steps else ():
        for made in reader.outputs:
            if _folds(made, tensor):
                return True
            narrower = made.shape[:-1] == tensor.shape[:-1] and made.shape != tensor.shape
            is_part = narrower and len(reader.operands) == 1
            if is_part and _becomes_heads(graph, made, steps - 1):
                return True
    return False


def _comes_from_heads(graph: Graph, tensor: Tensor) -> bool:
    """Return whether the last dim was made of heads and features per head."""
    maker = graph.producer[tensor.name]
    return any(_folds(graph.tensors[name], tensor) for name in maker.operands)


def _folds(wide: Tensor, flat: Tensor) -> bool:
    """Return whether the last dim of `flat` is the last two dims of `wide`."""
    return (
        len(wide.shape) == HEADS
        and math.prod(wide.shape) == math.prod(flat.shape)
        and wide.shape[-2] * wide.shape[-1] == flat.shape[-1]
    )
