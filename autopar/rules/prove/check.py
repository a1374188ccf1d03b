"""Checks a candidate against the whole operator, forward and backward, with ranks simulated in process.

A `Reference` is the whole operator with its gradients; `check` runs one candidate against it.
Gradients obey the types, too: output and operand gradients have the *dual* sharding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autopar.ir.graph import Arg, DType, Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.ops.operators import bind, callable_of
from autopar.plans.decisions import OpSharding
from autopar.rules.local import Local, localize
from autopar.rules.prove.simulate import TOLERANCE, WrongError, dual, error, gather, scatter

Outcome = tuple[list[torch.Tensor], list[torch.Tensor | None]]
"""Outputs, and the gradient of every operand that has one."""
Runner = Callable[["Reference", OpSharding, Mesh, Callable[[int], Outcome]], list[Outcome]]
"""Executes the work of every rank."""


@dataclass(frozen=True)
class Reference:
    """The whole operator: operands, outputs, the gradient fed in, and the operands' gradients."""

    graph: Graph
    node: Node
    operands: list[torch.Tensor]
    fed: list[torch.Tensor]
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def reference(
    graph: Graph, node: Node, operands: list[torch.Tensor], generator: torch.Generator
) -> Reference:
    """Run the whole operator on these operands, with a random gradient of its outputs."""
    fed = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for tensor in node.outputs
    ]
    function = callable_of(node.op)
    outputs, gradients = run(graph, node, function, (node.args, node.kwargs), operands, fed)
    return Reference(graph, node, operands, fed, outputs, gradients)


def in_turn(
    whole: Reference, sharding: OpSharding, mesh: Mesh, work: Callable[[int], Outcome]
) -> list[Outcome]:
    """Run the ranks one after the other; correct only if they do not communicate."""
    return [work(rank) for rank in range(mesh.world_size)]


def check(
    whole: Reference,
    sharding: OpSharding,
    mesh: Mesh,
    seed: int = 0,
    *,
    function: Callable[..., Any] | None = None,
    runner: Runner = in_turn,
) -> None:
    """Raise `WrongError` unless the operator on shards gives the whole operator's results.

    `function` replaces the operator if shards need a local implementation.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    node, graph = whole.node, whole.graph
    operands = [
        scatter(value, form, mesh, generator)
        for value, form in zip(whole.operands, sharding.inputs, strict=True)
    ]
    fed = [
        scatter(value, dual(form), mesh, generator)
        for value, form in zip(whole.fed, sharding.outputs, strict=True)
    ]
    local = localize(node, sharding, graph, mesh)
    local_function = function or callable_of(node.op)

    def work(rank: int) -> Outcome:
        mine, gradients = [parts[rank] for parts in operands], [parts[rank] for parts in fed]
        return run(graph, node, local_function, local, mine, gradients)

    _compare(whole, sharding, mesh, runner(whole, sharding, mesh, work))


def run(
    graph: Graph,
    node: Node,
    function: Callable[..., Any],
    arguments: Local,
    operands: list[torch.Tensor],
    fed: list[torch.Tensor],
) -> Outcome:
    """Run forward and backward on given tensors; operands are bound by position."""
    flags = [graph.tensors[name].differentiable for name in node.operands]
    backward = torch.is_grad_enabled()
    leaves = [
        value.detach()
        .clone(memory_format=torch.contiguous_format)
        .requires_grad_(flag and backward)
        for value, flag in zip(operands, flags, strict=True)
    ]
    given = iter(leaves)
    args = [bind(wide(arg), lambda _: next(given)) for arg in arguments[0]]
    kwargs = {key: bind(wide(arg), lambda _: next(given)) for key, arg in arguments[1]}
    made = function(*args, **kwargs)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(outputs) != len(node.outputs):
        raise WrongError(f"{len(outputs)} outputs instead of {len(node.outputs)}")
    roots = [
        (value, gradient)
        for value, gradient, tensor in zip(outputs, fed, node.outputs, strict=True)
        if tensor.differentiable and value.requires_grad
    ]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    found: list[torch.Tensor | None] = [None] * len(leaves)
    if roots and trained:
        values, gradients = zip(*roots, strict=True)
        grads = iter(torch.autograd.grad(values, trained, gradients, allow_unused=True))
        for place, leaf in enumerate(leaves):
            if leaf.requires_grad:
                gradient = next(grads)
                found[place] = torch.zeros_like(leaf) if gradient is None else gradient
    return [value.detach() for value in outputs], found


def wide(arg: Arg) -> Arg:
    """Replace float dtypes in an argument by float64."""
    if isinstance(arg, DType) and "float" in arg.name:
        return DType("float64")
    return tuple(map(wide, arg)) if isinstance(arg, tuple) else arg


def _compare(whole: Reference, sharding: OpSharding, mesh: Mesh, outcomes: list[Outcome]) -> None:
    for place, form in enumerate(sharding.outputs):
        parts = [outputs[place] for outputs, _ in outcomes]
        _same(parts, whole.outputs[place], form, mesh, f"output {place}")
    for place, form in enumerate(sharding.inputs):
        want = whole.gradients[place]
        if want is None:
            continue
        parts = [
            torch.zeros(form.local_shape(tuple(want.shape), mesh), dtype=want.dtype)
            if (gradient := gradients[place]) is None
            else gradient
            for _, gradients in outcomes
        ]
        _same(parts, want, dual(form), mesh, f"gradient of operand {place}")


def _same(
    parts: list[torch.Tensor], want: torch.Tensor, form: Sharding, mesh: Mesh, what: str
) -> None:
    try:
        got = gather(parts, tuple(want.shape), form, mesh)
    except WrongError as failure:
        raise WrongError(f"{what}, {form}: {failure}") from None
    if not error(got, want) <= TOLERANCE:
        raise WrongError(f"{what}, {form}: error {error(got, want):.1e}")
