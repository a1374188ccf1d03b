"""Selects a part of a plan: one stage, one module, or all facts about one tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.ir.split import computing, shared
from autopar.plans.changes import gathered_again
from autopar.plans.decisions import ParameterPlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.utils.messages import argument
from autopar.utils.suggest import hint

NEAR = 3


@dataclass(frozen=True)
class TensorFacts:
    """A plan's decisions for a tensor.

    `changes` are the conversion steps at its uses, `once` those once per training step.  `shape` and
    `part`, the local shape at rest, are known for parameters only.  `asked` are the constraints on the
    tensor; None if they cannot be determined without the graph, as constraints name operators by module.
    """

    name: str
    kind: str
    mesh: str
    shape: tuple[int, ...] | None
    part: tuple[int, ...] | None
    stored: str
    made: str
    changes: tuple[str, ...]
    once: tuple[str, ...]
    asked: tuple[str, ...] | None
    padding: tuple[str, ...] = ()


def stage_plan(plan: PipelinePlan, stage: int) -> Plan:
    """Return the plan of a stage on the first worker that holds it; `InputError` if there is none."""
    for each in plan.stages:
        if each.stage == stage:
            return each.plan
    raise InputError(f"There is no stage {stage}: the plan has {plan.schedule.stages}, from 0.")


def refuse_elsewhere(
    plan: PipelinePlan, stage: int, name: str, graphs: Sequence[Graph] = ()
) -> None:
    """Raise `InputError` if only other stages have a module or tensor; the message names them."""
    known = _by_stage(plan, graphs, shares=True)
    having = _having(name, known)
    if having and stage in known and not _having(name, {stage: known[stage]}):
        raise InputError(f"Stage {stage} has no {name!r}: look in {of_stages(having)}.")


def of_stages(numbers: Sequence[int]) -> str:
    """Return ``stage 1``, or ``stages 1, 2``."""
    return f"stage{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def holding(plan: PipelinePlan, name: str, graphs: Sequence[Graph] = ()) -> int:
    """Return the only stage with a module or tensor; raise `InputError` if there is none or several.

    With the stages' graphs, operators count as well.  Operators that every stage repeats, such as
    masks, count only if nothing else has the name.
    """
    own, every = (_by_stage(plan, graphs, shares) for shares in (False, True))
    having = _having(name, own) or _having(name, every)
    if len(having) > 1:
        stages = ", ".join(map(str, having))
        raise InputError(
            f"Stages {stages} all have a {name!r}: say which with {argument('stage')}."
        )
    if not having:
        names = [p.name for each in plan.stages for p in each.plan.parameters]
        raise InputError(f"No stage has {name!r}.{hint(name, names)}")
    return having[0]


def _having(name: str, known: Mapping[int, Collection[str]]) -> list[int]:
    """Return the stages with exactly this name, or else those where it matches something."""
    exact = [stage for stage, names in known.items() if name in names]
    return exact or [
        stage for stage, names in known.items()
        if any(_is_in(name, other) or _means(name, other) for other in names)
    ]  # fmt: skip


def _by_stage(
    plan: PipelinePlan, graphs: Sequence[Graph], shares: bool
) -> dict[int, frozenset[str]]:
    """Return the names in each stage: parameters, nodes, and paths of operators."""
    first = {each.stage: each.plan for each in reversed(plan.stages)}
    found: dict[int, frozenset[str]] = {}
    for stage, own in sorted(first.items()):
        nodes = computing(graphs[stage]) if graphs else ()
        left = shared(graphs[stage]) if graphs and not shares else frozenset()
        found[stage] = frozenset((
            *(p.name for p in own.parameters),
            *(c.node for c in own.choices if c.node not in left),
            *(node.path for node in nodes if node.name not in left),
        ))  # fmt: skip
    return found


def within_block(plan: Plan, graph: Graph | None, block: str) -> Plan:
    """Return the plan reduced to a module, or to several if `block` is a pattern.

    Without the graph, operators cannot be assigned to modules, and only parameters are kept.  Raises
    `InputError` if nothing is in the module.
    """
    kept = tuple(p for p in plan.parameters if _is_in(block, p.name))
    nodes: set[str] = set()
    if graph is not None:
        nodes = {node.name for node in graph.nodes if _is_in(block, node.path)}
    tensors = {re.sub(r"\W", "_", p.name) for p in kept}
    if graph is not None:
        tensors |= {t.name for node in graph.nodes if node.name in nodes for t in node.outputs}
    if not kept and not nodes:
        names = filter(None, (p.name.rpartition(".")[0] for p in plan.parameters))
        raise InputError(f"No module {block!r} has parameters.{hint(block, names)}")
    return replace(
        plan,
        parameters=kept,
        choices=tuple(c for c in plan.choices if c.node in nodes | tensors),
        conversions=tuple(c for c in plan.conversions if c.tensor in tensors),
        recompute=tuple(b for b in plan.recompute if _is_in(block, b.path) or b.path == block),
        padding=tuple(p for p in plan.padding if _is_in(block, p.leaf)),
    )


def tensor_facts(plan: Plan, name: str, graph: Graph | None = None) -> TensorFacts:
    """Return the facts about a parameter or tensor.

    `name` is a parameter's name or the end of it, or a tensor's name in emitted code.  If several
    parameters match that differ only in their layer, the first is described; otherwise `InputError` is
    raised.  The graph is needed for the constraints on tensors that are not parameters.
    """
    matching = [p for p in plan.parameters if _means(name, p.name)]
    exact = [p for p in matching if p.name == name]
    kinds = {(re.sub(r"\b\d+\b", "*", p.name), str(p.stored), str(p.leaf)) for p in matching}
    if exact or len(kinds) == 1:
        return _of_parameter(plan, (exact or matching)[0])
    if matching:
        some = ", ".join(p.name for p in matching[:NEAR])
        raise InputError(f"{name!r} means {len(matching)} parameters: {some} ... Name one of them.")
    made = plan.choice.get(name)
    changes = _changes(plan, name)
    if made is None and not changes:
        names = [p.name for p in plan.parameters] + [c.node for c in plan.choices]
        raise InputError(f"The plan has no tensor {name!r}.{hint(name, names)}")
    outputs = "" if made is None else ", ".join(map(str, made.outputs))
    asked = _asked_of_tensor(plan, name, graph)
    return TensorFacts(name, "tensor", str(plan.mesh), None, None, "", outputs, changes, (), asked)


def _asked_of_tensor(plan: Plan, name: str, graph: Graph | None) -> tuple[str, ...] | None:
    """Return the constraints on a tensor that is not a parameter; None if the graph is needed."""
    asked = [c for c in plan.asked.constraints if c.subject == "tensor"]
    if not asked:
        return ()
    if graph is None:
        return None
    made = graph.producer.get(name) or graph.node.get(name)
    return tuple(c.line for c in asked if made is not None and c.matches(made.path))


def _of_parameter(plan: Plan, found: ParameterPlan) -> TensorFacts:
    sizes = plan.mesh.sizes
    part = tuple(
        math.ceil(size / math.prod(sizes[axis] for _, axis in found.stored.cuts(dim)))
        for dim, size in enumerate(found.shape)
    )
    asked = tuple(
        c.line for c in plan.asked.constraints
        if c.matches(found.name) and not (c.subject == "tensor" and c.pattern == "*")
    )  # fmt: skip
    once = tuple(f"{plan.mesh.names[c.axis]}: {c.source} -> {c.target}" for c in found.steps)
    padding = tuple(
        f"dim {p.pad.dim} from {p.pad.size} to {p.pad.to}"
        for p in plan.padding if p.leaf == found.name
    )  # fmt: skip
    again = found.name in gathered_again(plan)
    leaf = f"{found.leaf}{', gathered again for the backward' * again}"
    return TensorFacts(
        found.name, "parameter", str(plan.mesh), found.shape, part, str(found.stored), leaf,
        _changes(plan, re.sub(r"\W", "_", found.name)), once, asked, padding,
    )  # fmt: skip


def _changes(plan: Plan, tensor: str) -> tuple[str, ...]:
    """Return the conversions of a tensor at its uses."""
    return tuple(
        f"{plan.mesh.names[c.axis]}: {c.source} -> {c.target}{', again' * c.regather}{c.by}"
        for c in plan.conversions
        if c.tensor == tensor
    )


def _is_in(block: str, name: str) -> bool:
    """Return whether a name is in a module: ``a.0`` contains ``a.0.mlp.weight`` and ``a.0/add``."""
    inside = (f"{block}.*", f"{block}/*", block)
    return any(fnmatchcase(name, pattern) for pattern in inside)


def _means(name: str, other: str) -> bool:
    return other == name or other.endswith(f".{name}") or fnmatchcase(other, name)
