"""What is counted of a graph and of a plan: whose word rules are, what axes split and what not."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from autopar.ir.graph import Graph, short
from autopar.ir.placement import S, Sharding
from autopar.plans.plan import Plan
from autopar.rules import flops, rule_of
from cost_models.hardware import Hardware, Link

TOLD = 3
"""Of what stays whole, so many are named."""


def without_latency(hardware: Hardware) -> Hardware:
    """Communication and calls for nothing: what a plan then leaves whole cannot be split."""
    link = Link(bytes_per_s=1e18, latency_s=0.0)
    device = replace(hardware.device, launch_s=0.0)
    return replace(hardware, device=device, intra_host=link, inter_host=link, shared={})


def operators(graph: Graph) -> dict[str, Any]:
    """Nodes, and the share of distinct operators by whose word their rule is.

    An operator whose calls differ in that counts for each.
    """
    nodes = [node for node in graph.nodes if not node.is_leaf]
    kinds = {(node.op, rule_of(node, graph).source) for node in nodes}
    sources = Counter(source for _, source in kinds)
    return {
        "nodes": len(nodes),
        "operators": len({node.op for node in nodes}),
        "rules": {source: round(count / len(kinds), 4) for source, count in sources.items()},
        "without rule": sorted({short(op) for op, source in kinds if source == "none"}),
        "found": sorted({short(op) for op, source in kinds if source == "discovered"}),
    }


def split(plan: Plan, graph: Graph) -> dict[str, Any]:
    """What each axis splits of operations and parameter bytes, and the largest of what it does not."""
    return {
        share.axis: {
            "flops": round(share.flops, 4),
            "stored": round(share.stored, 4),
            "used": round(share.used, 4),
            "whole flops": largest(whole_work(plan, graph, axis)),
            "whole parameters": largest(whole_weights(plan, graph, axis)),
        }
        for axis, share in enumerate(plan.shares)
    }


def whole_work(plan: Plan, graph: Graph, axis: int) -> Counter[str]:
    """Operations by operator, of calls that an axis does not split."""
    found: Counter[str] = Counter()
    for choice in plan.choices:
        node, sharding = graph.node[choice.node], choice.sharding
        if not any(splits(form, axis) for form in (*sharding.inputs, *sharding.outputs)):
            found[short(node.op)] += flops(node, graph)
    return found


def whole_weights(plan: Plan, graph: Graph, axis: int) -> Counter[str]:
    """Bytes by parameter and reader, of readings that an axis does not split; numbers as ``*``."""
    found: Counter[str] = Counter()
    targets = {node.outputs[0].name: node.target for node in graph.leaves("parameter")}
    for choice in plan.choices:
        node = graph.node[choice.node]
        for name, form in zip(node.operands, choice.sharding.inputs, strict=True):
            if name in targets and not splits(form, axis):
                tensor = graph.tensors[name]
                path = re.sub(r"\d+", "*", targets[name])
                found[f"{path} in {short(node.op)}"] += math.prod(tensor.shape) * tensor.itemsize
    return found


def splits(form: Sharding, axis: int) -> bool:
    """Whether a tensor is split on an axis."""
    return isinstance(form[axis], S)


def largest(weighed: Counter[str]) -> list[str]:
    """The names of the heaviest."""
    return [name for name, weight in weighed.most_common(TOLD) if weight]
