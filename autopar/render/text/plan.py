"""Renders a plan as text: step cost, parameters at rest and in the step, and communication."""

from __future__ import annotations

from rich.console import Group, RenderableType

from autopar.explain.pins import pinned_operators, pins
from autopar.ir.blocks import MODES, no_blocks
from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.render.text.cost import communication, constraints, costs, header
from autopar.render.text.operators import conversions, operators
from autopar.render.text.padding import padding
from autopar.render.text.parameters import parameters
from autopar.render.text.shares import shares

MENTIONED = 3
"""Maximum number of modules that are listed by name."""
LEGEND = (
    "types: S(d) split along dim d (of=k: in k equal blocks), R replicated, I invariant,\n"
    "       P to be summed, N without gradient; 'again': gathered a second time for the backward"
)


def show_plan(plan: Plan, graph: Graph | None = None) -> RenderableType:
    """Return the plan's summary with repeated blocks folded; with `graph`, names and uses are exact."""
    padded = (padding(plan), "") if plan.padding else ()
    left = (_left(plan, graph), "") if graph is not None and _left(plan, graph) else ()
    return Group(
        header(plan), "", costs(plan), "", *left, shares(plan), "", *padded,
        parameters(plan, graph), "", communication(plan),
    )  # fmt: skip


def _left(plan: Plan, graph: Graph) -> str:
    """Name the modules that a requested recomputation does not cover; empty if there are none."""
    forced = plan.asked.recompute not in (MODES, ("none",))
    left = no_blocks(graph) if forced else ()
    if not left:
        return ""
    more = f", and {len(left) - MENTIONED} more" if len(left) > MENTIONED else ""
    named = ", ".join(f"{path} ({why})" for path, why in left[:MENTIONED])
    return f"not recomputed, because they are not blocks: {named}{more}"


def show_block(plan: Plan, graph: Graph | None = None) -> RenderableType:
    """Return the parameters, operators and conversions of a plan that is restricted to a block."""
    marked = pins(plan) or pinned_operators(plan, graph)
    parts: list[RenderableType] = [constraints(plan), ""] if marked else []
    parts += [parameters(plan, graph)] if plan.parameters else []
    if plan.recompute:
        said = ", ".join(f"{block.path}: {block.recompute}" for block in plan.recompute)
        parts += ["", f"recomputed in the backward: {said}"]
    if any(choice.sharding.inputs for choice in plan.choices):
        parts += ["", operators(plan, graph)]
    elif graph is None:
        parts += ["", "Pass the MODEL to see the block's operators."]
    if plan.conversions:
        parts += ["", conversions(plan, graph)]
    return Group(*parts, "", LEGEND)


def show_operators(plan: Plan, graph: Graph | None = None) -> RenderableType:
    """Return all operators and conversions, folded, with a legend of the types."""
    return Group(operators(plan, graph), "", conversions(plan, graph), "", LEGEND)
