"""Explains why a plan does not belong to a graph, in terms that help to find the right model."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.ir.graph import Graph
from autopar.ir.pads import true_shape
from autopar.ir.units import shape
from autopar.plans.plan import Plan

FEW = 3


def differences(plan: Plan, graph: Graph) -> tuple[str, ...]:
    """Return the differences, most informative first; empty if the plan belongs to the graph."""
    if plan.graph_digest == graph.digest:
        return ()
    theirs = {p.name: p.shape for p in plan.parameters}
    tensors = {n.target: n.outputs[0] for n in graph.leaves("parameter")}
    ours = {name: true_shape(tensor.shape, tensor.pads) for name, tensor in tensors.items()}
    found = [
        *_named("the plan has parameters that the model lacks", theirs.keys() - ours.keys()),
        *_named("the model has parameters that the plan lacks", ours.keys() - theirs.keys()),
        *(
            f"{name} is {shape(ours[name])} in the model and {shape(theirs[name])} in the plan"
            for name in _some(n for n in ours.keys() & theirs.keys() if ours[n] != theirs[n])
        ),
        *_operators(plan, graph),
    ]
    if plan.model != graph.name:
        found.insert(0, f"the plan is for {plan.model}, the model is {graph.name}")
    return tuple(found) or ("the same operators on other sizes: batch, sequence or constants",)


def _operators(plan: Plan, graph: Graph) -> list[str]:
    """Return the differences in operators; leaves are covered by the parameters."""
    theirs = {choice.node for choice in plan.choices if choice.sharding.inputs}
    ours = {node.name for node in graph.nodes if node.operands}
    if theirs == ours:
        return []
    return [
        f"the plan has {len(theirs)} operators, the model {len(ours)}",
        *_named("only in the plan", theirs - ours),
        *_named("only in the model", ours - theirs),
    ]


def _named(what: str, names: Iterable[str]) -> list[str]:
    every = sorted(names)
    more = f" and {len(every) - FEW} more" if len(every) > FEW else ""
    return [f"{what}: {', '.join(every[:FEW])}{more}"] if every else []


def _some(names: Iterable[str]) -> list[str]:
    return sorted(names)[:FEW]
