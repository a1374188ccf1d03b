"""The proof of a rule: run the operator on shards, combine by the types, compare with the whole.

One `Reference` is the whole operator with its gradients; `check` runs one candidate against it.
Gradients obey the types too: what is fed in and what comes out lies by the *dual* sharding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from autopar import rules
from autopar.graph import Arg, DType, Graph, Node
from autopar.mesh import Mesh
from autopar.operators import bind, callable_of
from autopar.placement import I, N, P, R, S, Sharding
from autopar.plan import OpSharding
from autopar.rules.instance import Instance
from autopar.rules.positions import Positions, positions
from autopar.runtime import variants
from tests.rules.collectives import run_on_all
from tests.rules.simulate import TOLERANCE, WrongError, dual, error, gather, scatter
from tests.rules.values import draw

module = importlib.import_module("autopar.rules.candidates")
"""The module, whose name in the package is that of its function."""
POSITIONS = (1, 2, 3)
"""Every factor is split as one, two and three blocks."""
Outcome = tuple[list[torch.Tensor], list[torch.Tensor | None]]
"""Outputs, and the gradient of every operand that has one."""


@dataclass(frozen=True)
class Reference:
    """The whole operator: operands, outputs, the gradient fed in, and the operands' gradients."""

    graph: Graph
    node: Node
    operands: list[torch.Tensor]
    fed: list[torch.Tensor]
    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def reference(graph: Graph, node: Node, seed: int = 0) -> Reference:
    """Run the whole operator on random operands."""
    generator = torch.Generator().manual_seed(seed)
    operands = draw(node, tuple(graph.tensors[name] for name in node.operands), generator)
    function = callable_of(node.op)
    fed = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for tensor in node.outputs
    ]
    outputs, gradients = _run(graph, node, function, (node.args, node.kwargs), operands, fed)
    return Reference(graph, node, operands, fed, outputs, gradients)


def check(whole: Reference, sharding: OpSharding, mesh: Mesh, seed: int = 0) -> None:
    """Raise `WrongError` unless the operator on shards is the operator."""
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
    local = rules.localize(node, sharding, graph, mesh)
    function = _local_function(node, sharding, mesh)

    def work(rank: int) -> Outcome:
        mine, gradients = [parts[rank] for parts in operands], [parts[rank] for parts in fed]
        return _run(graph, node, function, local, mine, gradients)

    _compare(whole, sharding, mesh, _on_all_ranks(whole, sharding, mesh, work))


def prove(
    graph: Graph, node: Node, mesh: Mesh, seed: int = 0, whole: Reference | None = None
) -> tuple[OpSharding, ...]:
    """Check every candidate of a node; those that were checked."""
    whole = whole or reference(graph, node, seed)
    options = candidates(graph, node, mesh)
    for sharding in options:
        try:
            _legal(whole, sharding)
            check(whole, sharding, mesh, seed)
        except Exception as failure:
            rule = rules.rule_of(node, graph).rule
            raise WrongError(f"{node}\n{rule}\n{sharding} on mesh ({mesh}): {failure}") from failure
    return options


def candidates(graph: Graph, node: Node, mesh: Mesh) -> tuple[OpSharding, ...]:
    """Every candidate of a node, as if its neighbours brought shards at many positions."""

    def found(graph: Graph, smallest_axis: int) -> Positions:
        known = {name: set(shards) for name, shards in positions(graph, smallest_axis).items()}
        instance = module.rule_of(node, graph)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        terms = (*instance.rule.inputs, *instance.rule.outputs)
        for name, term in zip(names, terms, strict=True):
            reached = (instance.shard(term, f, p) for f in instance.shardable for p in POSITIONS)
            known[name] |= {shard for shard in reached if shard is not None}
        return {name: frozenset(shards) for name, shards in known.items()}

    with mock.patch.object(module, "positions", found):
        return rules.candidates(graph, mesh, local_inputs=True)[node.name]


@contextmanager
def with_rule(instance: Instance) -> Iterator[None]:
    """Candidates are made as if every operator had this rule."""
    replaced: Callable[..., Instance] = lambda node, graph: instance  # noqa: E731
    with (
        mock.patch.object(module, "rule_of", replaced),
        mock.patch("autopar.rules.positions.rule_of", replaced),
    ):
        yield


def _legal(whole: Reference, sharding: OpSharding) -> None:
    """N belongs to tensors without gradient alone; a tensor that is read twice is read in one form."""
    names = (*whole.node.operands, *(tensor.name for tensor in whole.node.outputs))
    forms: dict[str, Sharding] = {}
    for name, form in zip(names, (*sharding.inputs, *sharding.outputs), strict=True):
        letters = {R, I, P} if whole.graph.tensors[name].differentiable else {N, P}
        if any(kind not in letters for kind in form if not isinstance(kind, S)):
            raise WrongError(f"{name} cannot be {form}")
        if forms.setdefault(name, form) != form:
            raise WrongError(f"{name} is read as {forms[name]} and as {form}")


def _local_function(node: Node, sharding: OpSharding, mesh: Mesh) -> Callable[..., Any]:
    if not sharding.variant:
        return callable_of(node.op)
    axis = mesh.names[sharding.variants.index(sharding.variant)]
    function: Callable[..., Any] = getattr(variants, sharding.variant)
    return lambda *args, **kwargs: function(*args, **kwargs, axis=axis)


def _on_all_ranks(
    whole: Reference, sharding: OpSharding, mesh: Mesh, work: Callable[[int], Outcome]
) -> list[Outcome]:
    """Ranks one after the other, or as threads where they talk to each other."""
    if not sharding.variant:
        return [work(rank) for rank in range(mesh.world_size)]
    outcomes, sent = run_on_all(mesh, work)
    declared = rules.variant_traffic(sharding.variant, whole.node, sharding, whole.graph, mesh)
    itemsize = whole.graph.tensors[whole.node.operands[0]].itemsize
    wanted = tuple(traffic.nbytes * 8 // max(itemsize, 4) for traffic in declared)
    if sent != wanted:
        raise WrongError(f"all-reduces of {sent} bytes, declared are {wanted}")
    return outcomes


def _run(
    graph: Graph,
    node: Node,
    function: Callable[..., Any],
    arguments: tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]],
    operands: list[torch.Tensor],
    fed: list[torch.Tensor],
) -> Outcome:
    """Forward and backward on given tensors; operands are bound by place."""
    flags = [graph.tensors[name].differentiable for name in node.operands]
    leaves = [
        value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(flag)
        for value, flag in zip(operands, flags, strict=True)
    ]
    given = iter(leaves)
    args = [bind(_wide(arg), lambda _: next(given)) for arg in arguments[0]]
    kwargs = {key: bind(_wide(arg), lambda _: next(given)) for key, arg in arguments[1]}
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


def _wide(arg: Arg) -> Arg:
    """Casts to any float become casts to float64."""
    if isinstance(arg, DType) and "float" in arg.name:
        return DType("float64")
    return tuple(map(_wide, arg)) if isinstance(arg, tuple) else arg


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
