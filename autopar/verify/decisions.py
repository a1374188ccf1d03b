"""Checks that a plan matches its model, that its decisions are candidates, and their consequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from autopar.errors import InputError, PlanError
from autopar.ir.blocks import MODES, blocks
from autopar.plans.decisions import Conversion
from autopar.plans.plan import Plan
from autopar.request.optimizers import update_of
from autopar.sharding.sharding_problem import candidates_of
from autopar.sharding.space import Candidates
from autopar.utils.messages import argument
from autopar.verify.check import Check, checked, differs, priced_for
from autopar.verify.recomputed import RecomputedFigures


def belongs(again: RecomputedFigures) -> Iterator[Check]:
    """Check that model and profile are the plan's, and that the plan is well-formed."""
    plan, graph, profile = again.stated, again.posed.graph, again.posed.prices.hardware
    faults = [
        *differs("model", plan.model, graph.name),
        *differs("graph_digest", plan.graph_digest, graph.digest),
    ]
    yield checked("graph", f"{graph.name}, {graph.digest}", faults)
    yield priced_for(plan.hardware, plan.hardware_digest, profile)
    times = again.posed.prices.times
    there = "none" if times is None else times.digest
    faults = list(differs("times", "none" if plan.times is None else plan.times.digest, there))
    if plan.times is not None and faults:
        faults[0] += f" (times of {plan.times.setting}; pass their file as {argument('database')})"
    yield checked("times", "modelled" if times is None else f"measured, {there}", faults)
    yield _optimizer(plan)
    try:
        plan.check(graph)
    except PlanError as error:
        yield Check("structure", False, str(error))
    else:
        yield Check("structure", True, "sizes divide, and every layout that is read is made")


def _optimizer(plan: Plan) -> Check:
    """Check that the optimizer is torch's, with the state size that the plan's memory assumes."""
    try:
        found = update_of(plan.optimizer)
    except InputError as error:
        return Check("optimizer", False, str(error))
    asked = plan.asked
    what = f"the state of {plan.optimizer}, in tensors of a parameter's size,"
    faults = [*differs(what, asked.states, found.states)]
    faults += differs(
        f"the share of other states of {plan.optimizer}", asked.whole_states, found.whole_states
    )
    faults += differs(f"what an update of {plan.optimizer} reads", asked.reads, found.reads)
    said = f"{plan.optimizer} keeps {found.states:g} tensors of a parameter's size"
    if found.reads != "shards":
        said += f", and its update reads the whole {found.reads}"
    return checked("optimizer", said, faults)


def allowed(again: RecomputedFigures) -> Iterator[Check]:
    """Check that every decision is a candidate under the rules and under the plan's constraints."""
    posed = again.posed
    unbound = replace(posed.settings, constraints=(), regather=None, storage={})
    free = replace(candidates_of(posed.graph, posed.prices.mesh, unbound), recompute=MODES)
    count, _ = free.count()
    by_rules = checked(
        "types",
        f"all are among the {count} candidates of the rules",
        _strangers(again, free, "the rules"),
    )
    yield by_rules
    if not by_rules.ok:
        return
    constraints = len(posed.settings.constraints)
    yield checked(
        "constraints",
        f"all {constraints} are met" if constraints else "none were set",
        _strangers(again, posed.priced.candidates, "the plan's own constraints"),
    )


def _strangers(again: RecomputedFigures, candidates: Candidates, who: str) -> Iterator[str]:
    """Yield a fault for each decision that is not a candidate."""
    decisions = again.decisions
    for node in again.posed.graph.nodes:
        if node.name in decisions.parameters:
            storage = decisions.parameters[node.name]
            if storage not in candidates.parameters[node.name]:
                gathers = ", gathered again" if storage.regather else ""
                yield (
                    f"parameter {node.target} is stored {storage.stored}, in the step "
                    f"{storage.leaf}{gathers}, which {who} do not allow"
                )
        elif decisions.operators[node.name] not in candidates.operators[node.name]:
            yield (
                f"tensor {node.outputs[0].name} is made by {node.path} as "
                f"{decisions.operators[node.name]}, which {who} do not allow"
            )
    for block in blocks(again.posed.graph):
        mode = again.stated.recompute_of.get(block.path, "none")
        if mode not in candidates.recompute:
            yield f"block {block.path} is recomputed ({mode}), which {who} do not allow"


def follows(again: RecomputedFigures) -> Iterator[Check]:
    """Check that parameters' steps and all conversions follow from the decisions, in order."""
    stated, needed = again.stated, again.plan
    pairs = itertools.zip_longest(stated.parameters, needed.parameters)
    faults = [f"the plan has {a}, needed is {b}" for a, b in pairs if a != b]
    faults += [
        f"conversion {place}: the plan has {_spelled(a)}, needed is {_spelled(b)}"
        for place, (a, b) in enumerate(
            itertools.zip_longest(stated.conversions, needed.conversions)
        )
        if a != b
    ]
    faults += differs("recompute", stated.recompute, needed.recompute)
    faults += differs("padding", stated.padding, needed.padding)
    # Plans of earlier versions record no inputs.
    faults += differs("inputs", stated.inputs or needed.inputs, needed.inputs)
    faults += differs("whether choices are in order", stated.choices == needed.choices, True)
    yield checked("conversions", f"the {len(needed.conversions)} that the types need", faults)


def _spelled(conversion: Conversion | None) -> str:
    if conversion is None:
        return "nothing"
    gathers = ", gathered again" if conversion.regather else ""
    return f"{conversion.tensor} {conversion.source} -> {conversion.target}{gathers}{conversion.by}"
