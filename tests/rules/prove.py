"""Every candidate of a node under `autopar.rules.prove`, with local implementations too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from autopar import rules
from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding
from autopar.plans.decisions import OpSharding
from autopar.rules import prove as package
from autopar.rules.instance import Instance
from autopar.rules.positions import Positions, positions
from autopar.rules.prove import Outcome, Reference, WrongError
from autopar.runtime import variants
from tests.rules.collectives import here, run_on_all
from tests.rules.values import draw

module = importlib.import_module("autopar.rules.candidates")
"""The module, whose name in the package is that of its function."""
POSITIONS = (1, 2, 3)
"""Every factor is split as one, two and three blocks."""


def reference(graph: Graph, node: Node, seed: int = 0) -> Reference:
    """Run the whole operator on random operands that it accepts."""
    generator = torch.Generator().manual_seed(seed)
    operands = draw(node, tuple(graph.tensors[name] for name in node.operands), generator)
    return package.reference(graph, node, operands, generator)


def check(whole: Reference, sharding: OpSharding, mesh: Mesh, seed: int = 0) -> None:
    """Raise `WrongError` unless the operator on shards, or its local implementation, is the operator."""
    function = _local_function(sharding, mesh)
    package.check(whole, sharding, mesh, seed, function=function, runner=_on_all_ranks)


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


def _local_function(sharding: OpSharding, mesh: Mesh) -> Callable[..., Any] | None:
    if not sharding.variant:
        return None
    axis = mesh.names[sharding.variants.index(sharding.variant)]
    function: Callable[..., Any] = getattr(variants, sharding.variant)
    return lambda *args, **kwargs: function(*args, **kwargs, axis=here(axis))


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
        raise WrongError(f"collectives of {sent} bytes, declared are {wanted}")
    return outcomes
