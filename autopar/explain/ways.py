"""Lists the alternatives of a target, each as the states that it allows the problem's variables."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from autopar.errors import ConstraintError
from autopar.explain.spoken import describe_sharding
from autopar.explain.target import Module, stored
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, R, S, Sharding
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.constraints import PLACES
from autopar.sharding.narrow import narrow
from autopar.sharding.sharding_problem import ShardingProblem, where_is

States = Mapping[str, frozenset[int]]
"""Allowed states by variable name."""


@dataclass(frozen=True)
class TargetOption:
    """One alternative of a target; `states` is None if the constraints allow none."""

    types: str
    states: States | None
    kind: Hashable = ""
    """Equal for candidates that are nearly equivalent."""
    is_whole: bool = False
    """Whether nothing is split and nothing is a partial sum."""


def ways_of(node: Node, posed: ShardingProblem, plan: Plan) -> tuple[TargetOption, ...]:
    """Return the alternatives of an operator or parameter.

    Candidates that differ only in whether gathered parameters are kept are one alternative.
    """
    ways: dict[str, TargetOption] = {}
    for state, (types, kind, forms) in enumerate(_candidates(posed, node, plan.mesh)):
        known = ways.get(types)
        before = known.states[node.name] if known and known.states else frozenset()
        whole = all(letter in (I, R, N) for form in forms for letter in form)
        ways[types] = TargetOption(types, {node.name: before | {state}}, kind, whole)
    return tuple(ways.values())


def _candidates(
    posed: ShardingProblem, node: Node, mesh: Mesh
) -> Iterator[tuple[str, Hashable, tuple[Sharding, ...]]]:
    """Yield each candidate's text, kind and shardings."""
    candidates = posed.priced.candidates
    if node.op == "parameter":
        for storage in candidates.parameters[node.name]:
            forms = (storage.stored, storage.leaf)
            splits = tuple(isinstance(letter, S) for form in forms for letter in form)
            yield stored(str(storage.stored), str(storage.leaf)), splits, forms
    else:
        for option in candidates.operators[node.name]:
            said = describe_sharding(option, posed.graph, node, mesh)
            yield str(option), said, (*option.inputs, *option.outputs)


def recomputations(module: Module, posed: ShardingProblem) -> tuple[TargetOption, ...]:
    """Return the recomputation modes of the module's blocks; empty if it contains no whole block."""
    inside = [b.path for b in blocks(posed.graph) if f"{b.path}.".startswith(f"{module.path}.")]
    if not inside:
        return ()
    return tuple(
        TargetOption(_spoken(mode), dict.fromkeys(inside, frozenset([state])))
        for state, mode in enumerate(posed.priced.candidates.recompute)
    )


def _spoken(mode: str) -> str:
    return "keeps all for the backward" if mode == "none" else f"recompute {mode}"


def presets_of(module: Module, posed: ShardingProblem) -> Iterator[TargetOption]:
    """Yield the presets for the module: each preset's constraints applied to the module alone."""
    graph = _alone(module, posed.graph)
    mine = {node.name for node in module.nodes}
    candidates = posed.priced.candidates
    operators = {node.name: candidates.operators.get(node.name, ()) for node in graph.nodes}
    parameters = {name: o for name, o in candidates.parameters.items() if name in mine}
    where = {place: where_is(place, posed.graph) for place in PLACES}
    for name in presets.names():
        constraints = presets.load(name, posed.prices.mesh)
        try:
            kept, rest = narrow(operators, parameters, graph, posed.prices.mesh, constraints, where)
        except ConstraintError:
            yield TargetOption(name, None)
            continue
        again = presets.regathers(name)
        states = {
            node.name: frozenset(
                state
                for state, storage in enumerate(candidates.parameters[node.name])
                if storage in rest[node.name]
                and (again in (None, storage.regather) or not storage.leaf.is_split)
            )
            if node.op == "parameter"
            else frozenset(map(candidates.operators[node.name].index, kept[node.name]))
            for node in module.nodes
        }
        yield TargetOption(name, states if all(states.values()) else None)


def _alone(module: Module, graph: Graph) -> Graph:
    """Return a graph of the module's nodes, with everything else that they read as inputs."""
    mine = {node.name for node in module.nodes}
    read = {graph.producer[name].name for node in module.nodes for name in node.operands}
    nodes = (
        node
        if node.name in mine or node.op == "parameter"
        else replace(node, op="received", args=(), kwargs=(), target=node.path)
        for node in graph.nodes
        if node.name in mine | read
    )
    return replace(graph, nodes=tuple(nodes))
