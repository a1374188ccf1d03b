"""Checks that presets, constraints and local inputs split something.

Those that split nothing are errors, unless ``Planning(allow_undivided=True)`` permits them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autopar.errors import ConstraintError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Axis, Mesh
from autopar.ir.placement import Sharding
from autopar.plans.plan import Plan
from autopar.plans.record import Share
from autopar.request import presets
from autopar.request.constraints import SEQUENCE, Constraint
from autopar.sharding.sharding_problem import batch_inputs, where_is
from autopar.sharding.whole_operators import first_whole, why_whole
from autopar.utils.messages import argument

SEQUENCES = ("S(1)",), (SEQUENCE,)
"""First alternatives that split activations along the sequence."""


def check_divided(
    plan: Plan, graph: Graph, constraints: tuple[Constraint, ...], *, local: bool = False
) -> None:
    """Raise `ConstraintError` if an axis does not split what the preset says.

    The same holds for a constraint that prefers shards but gets none.  `local`: every rank passes its
    own part of the batch.
    """
    for share, axis in zip(plan.shares, plan.mesh, strict=True):
        if plan.preset and axis.size > 1:
            _check_axis(plan, graph, share, axis, local)
    for constraint in constraints:
        heard = not constraint.optional and _spoken(constraint, graph)
        if heard and _wants_shards(constraint) and not _is_met(constraint, plan, graph):
            raise ConstraintError(
                f"The constraint ({constraint.line}) splits nothing: no tensor that it matches "
                f"has a dim that its axis divides. {_sizes(graph, local)} Choose sizes that "
                f"divide, leave it out, or pass {argument('allow_undivided', True)}."
            )


def check_local(form: Sharding, graph: Graph, mesh: Mesh) -> None:
    """Raise `ConstraintError` if each rank passes a part of the batch but the plan does not split it."""
    if mesh.world_size > 1 and not form.is_split:
        raise ConstraintError(
            f"{argument('local', True)} means that every rank passes its own part of the batch, but "
            f"the plan on mesh ({mesh}) does not split the batch, so each rank would train on its own "
            f"part alone. {_sizes(graph, local=True)} {_remedies(mesh, graph)}"
        )


def _check_axis(plan: Plan, graph: Graph, share: Share, axis: Axis, local: bool) -> None:
    """Raise `ConstraintError` unless the axis splits work, and what the preset shards on it."""
    rules = [c for c in presets.load(plan.preset, plan.mesh) if c.axis == axis.name]
    sharded = {c.subject for c in rules if len(c.allowed) > 1 and c.allowed[0] == ("S",)}
    missing = [
        words
        for words, lacks in (
            ("none of the work", not share.flops),
            ("no parameter at rest", "stored" in sharded and not share.stored),
            ("no parameter where it is used", "used" in sharded and not share.used),
            ("no activation along the sequence", _lacks_sequence(rules, plan, graph)),
        )
        if lacks
    ]
    if missing:
        raise ConstraintError(
            f"The preset {plan.preset!r} splits {' and '.join(missing)} of {graph.name} on mesh axis "
            f"{axis.name!r} ({axis.size} devices). {_sizes(graph, local)} {_remedies(plan.mesh, graph)}"
        )


def _lacks_sequence(rules: list[Constraint], plan: Plan, graph: Graph) -> bool:
    wanted = [c for c in rules if c.subject == "tensor" and c.allowed[0] in SEQUENCES]
    return bool(wanted) and not any(_is_met(c, plan, graph) for c in wanted)


def _wants_shards(constraint: Constraint) -> bool:
    softly = constraint.kind == "prefer" or len(constraint.allowed) > 1
    first = constraint.allowed[0]
    return softly and constraint.kind != "forbid" and all(t.startswith("S") for t in first)


def _spoken(constraint: Constraint, graph: Graph) -> bool:
    return any(
        constraint.matches(node.target if node.op == "parameter" else node.path)
        for node in graph.nodes
    )


def _is_met(constraint: Constraint, plan: Plan, graph: Graph) -> bool:
    """Return whether any tensor meets the constraint's first alternative."""
    return any(constraint.rank(*form) == 0 for form in _forms(constraint, plan, graph))


def _forms(constraint: Constraint, plan: Plan, graph: Graph) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Yield (sharding, mesh, split by its place) of every tensor that the constraint applies to."""
    mesh = plan.mesh
    if constraint.subject in ("stored", "leaf", "tensor"):
        for parameter in plan.parameters:
            if constraint.matches(parameter.name) and constraint.pattern != "*":
                yield (parameter.stored if constraint.subject == "stored" else parameter.leaf), mesh
    if constraint.subject in ("stored", "leaf"):
        if constraint.pattern == "*":
            for p in plan.parameters:
                yield (p.stored if constraint.subject == "stored" else p.leaf), mesh
        return
    places = where_is(constraint.place, graph) if constraint.place else {}
    for node in graph.nodes:
        choice = plan.choice[node.name]
        forms = (*choice.inputs, *choice.outputs)
        dims = places.get(node.name, (None,) * len(forms))
        if constraint.subject == "tensor" and not node.is_leaf and constraint.matches(node.path):
            for form, dim in zip(forms, dims, strict=True):
                yield form, mesh, dim
        if constraint.subject == "used":
            for name, form in zip(node.operands, choice.inputs, strict=True):
                leaf = graph.producer[name]
                if leaf.op == "parameter" and constraint.matches(leaf.target):
                    yield form, mesh


def _sizes(graph: Graph, local: bool) -> str:
    inputs = [node.outputs[0] for node in batch_inputs(graph)]
    if not inputs:
        return "The batch has no dim of samples."
    whole = " (example inputs are the batch of all ranks, not one rank's part)" if local else ""
    return f"The batch has {inputs[0].shape[0]} samples{whole}."


def _remedies(mesh: Mesh, graph: Graph) -> str:
    wholes = (
        argument("allow_undivided", True) + " to let every rank do all of it (with the same batch)"
    )
    samples = [node.outputs[0].shape[0] for node in batch_inputs(graph)]
    if samples and all(size % mesh.world_size == 0 for size in samples):
        node = first_whole(graph)
        if node is not None:
            return f"{why_whole(node, graph)} Or use another preset or none, or pass {wholes}."
        return (
            "The mesh divides the batch, so it is the model's operators that the preset does not "
            "split: they have no rule, or sizes that the mesh does not divide. See which with "
            f"autopar.plan(..., {argument('allow_undivided', True)}); use another preset "
            f"or none, or pass {wholes}."
        )
    sizes = sorted({size for size in (*mesh.sizes, math.prod(mesh.sizes)) if size > 1})
    return (
        "Pass a batch whose size, and a model whose sizes, are multiples of "
        f"{' or '.join(map(str, sizes))} (DataLoader(drop_last=True) leaves out the rest), use a "
        "smaller mesh or another preset, or pass "
        f"{wholes}."
    )
