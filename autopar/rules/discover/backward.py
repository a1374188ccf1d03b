"""Tells by experiment whether a user's backward may get parts of a gradient: whether it is linear in it.

A tensor of type R has a partial sum as its gradient on each rank.  The backwards of PyTorch's operators
are linear, so that parts of gradients give parts of gradients.  A user's `torch.autograd.Function` or
`torch.library.custom_op` may clamp, round or normalise the gradient that arrives: it needs all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from autopar.errors import RuleError
from autopar.ir.graph import Graph, Node, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import N, R, Sharding
from autopar.ops.operators import callable_of
from autopar.plans.decisions import OpSharding
from autopar.rules.discover.find import Signature, benches, signature_of
from autopar.rules.discover.laboratory import Bench, Declined, refuse, sheltered
from autopar.rules.discover.sizes import affordable, families
from autopar.rules.prove import Reference, WrongError, check, run

TORCHS = ("aten.", "autopar.", "autopar_static.", "prims.")
SCALES = (1.0, 1e3, 1e-3)
"""Of the gradients that are tried: a clamp is linear below its limit, and rounding above one."""
TWO = Mesh.of(2)
_KNOWN: dict[Signature, bool] = {}


def whole_gradients(
    graph: Graph, every: Mapping[str, tuple[OpSharding, ...]]
) -> dict[str, tuple[OpSharding, ...]]:
    """Return the candidates without those that give parts of gradients to a backward that needs all."""
    found = dict(every)
    for node in graph.nodes:
        operands = tuple(graph.tensors[name] for name in node.operands)
        if node.is_leaf or takes_parts(node, operands):
            continue
        found[node.name] = tuple(
            option
            for option in every[node.name]
            if not any(R in form for form in _differentiable(option.outputs, node.outputs))
        )
    return found


def takes_parts(node: Node, operands: tuple[Tensor, ...]) -> bool:
    """Return whether the backward of an operator is linear; False also if no experiment is possible."""
    if node.op.startswith(TORCHS) or not any(tensor.differentiable for tensor in node.outputs):
        return True
    shapes = tuple(tensor.shape for tensor in operands)
    tried = (*families(shapes, node), *([(shapes,)] if affordable(shapes) else []))
    key = signature_of(node, operands, tried)
    if key not in _KNOWN:
        try:
            refuse(node, operands)
            with sheltered():
                _KNOWN[key] = all(map(_is_linear, benches(node, operands, tried)))
        except (Declined, RuleError):
            _KNOWN[key] = False
    return _KNOWN[key]


def _differentiable(forms: tuple[Sharding, ...], tensors: tuple[Tensor, ...]) -> Iterator[Sharding]:
    return (form for form, tensor in zip(forms, tensors, strict=True) if tensor.differentiable)


def _is_linear(bench: Bench) -> bool:
    """Run the operator whole on two ranks, of which each gets a random part of the gradient."""
    parts = OpSharding(_replicated(bench.operands), _replicated(bench.node.outputs), ("",))
    try:
        for whole in bench.wholes:
            for scale in SCALES:
                check(_fed(whole, scale), parts, TWO)
    except WrongError:
        return False
    return True


def _replicated(tensors: tuple[Tensor, ...]) -> tuple[Sharding, ...]:
    return tuple(Sharding((R if tensor.differentiable else N,)) for tensor in tensors)


def _fed(whole: Reference, scale: float) -> Reference:
    """Return the reference with another scale of the gradient that arrives."""
    fed: list[torch.Tensor] = [scale * each for each in whole.fed]
    node = whole.node
    arguments = node.args, node.kwargs
    _, gradients = run(whole.graph, node, callable_of(node.op), arguments, whole.operands, fed)
    return replace(whole, fed=fed, gradients=gradients)
