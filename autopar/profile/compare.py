"""Compares a traced step with its plan: operator groups, collectives, and unattributed time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from autopar.ir.blocks import block_of
from autopar.ir.graph import Graph, Node
from autopar.plans.estimate import Flow
from autopar.plans.identity import Identity
from autopar.plans.plan import Plan
from autopar.profile.trace import BACKWARD, FORWARD, UPDATE, Trace, by_group
from autopar.profile.traced_step import Beside, FlowLine, Line


def compared(plan: Plan, graph: Graph, trace: Trace) -> Beside:
    """Return the comparison of a trace with a plan."""
    parts = plan.estimate.parts
    assert parts is not None, "only plans read from old files have none"
    return Beside(
        of=Identity.of(plan),
        plan=plan.digest,
        predicted_step_s=plan.estimate.step_s,
        measured_step_s=trace.step_s,
        traced_step_s=trace.traced_s,
        predicted_update_s=parts.update_s,
        measured_update_s=trace.parts[UPDATE],
        lines=tuple(_lines(plan, graph, trace)),
        flows=tuple(_flows(plan, trace)),
    )


def _lines(plan: Plan, graph: Graph, trace: Trace) -> Iterator[Line]:
    """Yield the operator groups in graph order; measured times without a group come last."""
    forward, backward = by_group(trace.forward_s), by_group(trace.backward_s)
    predicted = {each.node: each for each in plan.estimate.operators}
    groups: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.name in predicted:
            block, place = group_of(node)
            # A block of few operators is emitted inline in its parent.
            is_there = (block, place) in forward or ("", place) not in forward
            groups[block if is_there else "", place].append(node)
    for (block, place), nodes in groups.items():
        times = [predicted[node.name] for node in nodes]
        sources = Counter(each.source for each in times)
        yield Line(
            block, place, nodes[0].origin.code, len(nodes), ", ".join(sorted(sources)),
            sum(each.forward_s for each in times), forward.pop((block, place), 0.0),
            sum(each.backward_s for each in times), backward.pop((block, place), 0.0),
        )  # fmt: skip
    for block, place in dict.fromkeys((*forward, *backward)):
        name = (block or "(autograd, gradients' sums)") if not place else block
        times_of = forward[block, place], backward[block, place]
        yield Line(name, place, "", 0, "", 0.0, times_of[0], 0.0, times_of[1])


def group_of(node: Node) -> tuple[str, str]:
    """Return the block and the source line of a node, as the emitted code's marks name them."""
    where = block_of(node.origin)
    block = "" if where is None else f"{where[0]}.{where[1]}"
    return block, f"{Path(node.origin.file).name}:{node.origin.line}" if node.origin.code else ""


def _flows(plan: Plan, trace: Trace) -> Iterator[FlowLine]:
    left = dict(trace.collective_s)
    for flow in plan.estimate.flows:
        key = flow.axis, flow.collective, _when(flow)
        measured_s = left.pop(key, 0.0)
        yield FlowLine(*key, flow.calls, trace.calls[key], flow.seconds, measured_s)
    for key, measured_s in left.items():
        yield FlowLine(*key, 0, trace.calls[key], 0.0, measured_s)


def _when(flow: Flow) -> str:
    if flow.scope == "step":
        return "parameters" if flow.direction == FORWARD else "gradients"
    return FORWARD if flow.direction == FORWARD else BACKWARD
