"""Computes the share of the work and of the parameters that each mesh axis splits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.plans.decisions import Choice, ParameterPlan
from autopar.plans.record import Share
from autopar.rules import flops

Weighed = list[tuple[float, tuple[Sharding, ...]]]
"""Weights (operations or bytes), each with the forms of the tensors concerned."""


def shares(
    graph: Graph, choices: tuple[Choice, ...], parameters: tuple[ParameterPlan, ...], mesh: Mesh
) -> tuple[Share, ...]:
    """Return one share per axis.  An operator counts as split if any operand or output is."""
    work: Weighed = []
    used: Weighed = []
    for choice in choices:
        node, sharding = graph.node[choice.node], choice.sharding
        work.append((flops(node, graph), (*sharding.inputs, *sharding.outputs)))
        for name, form in zip(node.operands, sharding.inputs, strict=True):
            if graph.producer[name].op == "parameter":
                tensor = graph.tensors[name]
                used.append((math.prod(tensor.shape) * tensor.itemsize, (form,)))
    itemsize = {node.target: node.outputs[0].itemsize for node in graph.leaves("parameter")}
    stored: Weighed = [(math.prod(p.shape) * itemsize[p.name], (p.stored,)) for p in parameters]
    return tuple(
        Share(axis.name, *(_split(found, place, axis.size) for found in (work, stored, used)))
        for place, axis in enumerate(mesh)
    )


def _split(weighed: Weighed, axis: int, size: int) -> float:
    """Return the fraction of the weight that is split on an axis; 0 for an axis of size 1."""
    whole = sum(weight for weight, _ in weighed)
    if size == 1 or not whole:
        return 0.0
    return sum(weight for weight, forms in weighed if _is_split(forms, axis)) / whole


def _is_split(forms: Iterable[Sharding], axis: int) -> bool:
    return any(isinstance(form[axis], S) for form in forms)
