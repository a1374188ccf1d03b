"""Describes the parallelism of a plan in standard terms: one short phrase per mesh axis.

An axis is classified by the operators with a weight of two dims or more, which hold nearly all FLOPs.
On an axis such an operator splits its weight (tensor parallel), the batch (data parallel), token
positions (sequence parallel), experts to which tokens travel (expert parallel), or nothing (replicated).
Weights that are used whole are described by their storage at rest: whole, sharded and gathered once per
step (ZeRO), or sharded and gathered at each use (FSDP), where they are gathered again for the backward
(regathered) or kept until then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from autopar.ir.graph import Graph, Node, Tensor
from autopar.ir.placement import I, R, S, Type
from autopar.plans.decisions import ParameterPlan
from autopar.plans.plan import Plan
from autopar.request.constraints import BATCH
from autopar.rules import flops
from autopar.rules.batch import BatchDims
from autopar.sharding.sharding_problem import batch_inputs, where_is

MOST, LEAST = 0.95, 0.05
"""Share above which the other parts are not mentioned, and share below which a part is not."""
DATA, SEQUENCE, TENSOR, EXPERT, REPLICATED = (
    "data parallel", "sequence parallel", "tensor parallel", "expert parallel", "replicated",
)  # fmt: skip
Nodes = tuple[Node, ...]
BOTH = "tensor + sequence parallel"
FSDP, ZERO, WHOLE = "FSDP", "ZeRO", "whole"


def words(plan: Plan, graph: Graph, within: Collection[Node] | None = None) -> tuple[str, ...]:
    """Return a phrase per mesh axis, such as ``data parallel (FSDP, regathered)``.

    `within` restricts it to these nodes.
    """
    nodes = tuple(graph.nodes if within is None else within)
    batch = where_is(BATCH, graph)
    return tuple(_phrase(plan, graph, nodes, batch, axis) for axis in range(len(plan.mesh)))


def _phrase(plan: Plan, graph: Graph, nodes: Nodes, batch: BatchDims, axis: int) -> str:
    if plan.mesh.sizes[axis] == 1:
        return "one device"
    work: Counter[str] = Counter()
    for node in nodes:
        weights = tuple(weights_of(node, graph))
        if weights:
            split_by_samples = batch[node.name][len(node.operands)]
            way = _way(plan, graph, node, weights, split_by_samples, axis)
            work[way] += flops(node, graph)
    if not work:
        return REPLICATED
    return _listed(work, {way: _said(plan, graph, nodes, way, axis) for way in work})


def _said(plan: Plan, graph: Graph, nodes: Nodes, way: str, axis: int) -> str:
    """Return a kind of parallelism with its details."""
    if way == TENSOR:
        return BOTH if _splits_tokens(plan, nodes, axis) else TENSOR
    if way == EXPERT:
        return EXPERT
    rest = _rest(plan, graph, nodes, axis)
    return f"{way} ({rest})" if rest else way


def _listed(shares: Counter[str], said: dict[str, str]) -> str:
    """Return the dominant kind alone, or else the relevant kinds with their shares."""
    whole = shares.total() or 1
    (first, most), *_ = shares.most_common()
    if most >= MOST * whole:
        return said[first]
    parts = [(name, n / whole) for name, n in shares.most_common() if n >= LEAST * whole]
    return ", ".join(f"{share:.0%} {said[name]}" for name, share in parts)


def weights_of(node: Node, graph: Graph) -> Iterator[int]:
    """Yield positions of operands that are parameters of two dims or more, even cast or transposed."""
    for place, name in enumerate(node.operands):
        maker, tensor = graph.producer[name], graph.tensors[name]
        while not maker.is_leaf and len(maker.operands) == 1:
            maker = graph.producer[maker.operands[0]]
        if maker.op == "parameter" and len(tensor.shape) > 1 and len(node.operands) > 1:
            yield place


def _way(
    plan: Plan, graph: Graph, node: Node, weights: tuple[int, ...], batch: S | None, axis: int
) -> str:
    """Return what an operator with a weight splits on an axis; `batch` is its result's batch split."""
    choice = plan.choice[node.name]
    if choice.variants[axis] == "expert_dispatch":
        return EXPERT
    if any(isinstance(choice.inputs[place][axis], S) for place in weights):
        return TENSOR
    kind = choice.outputs[0][axis]
    if not isinstance(kind, S):
        return REPLICATED
    if batch is not None:
        return DATA if choice.outputs[0].splits(batch, axis, plan.mesh) else SEQUENCE
    return DATA if _is_batch(graph, node.outputs[0], kind) else SEQUENCE


def _is_batch(graph: Graph, tensor: Tensor, kind: S) -> bool:
    """Return whether a split lies within the batch dim, by its position in the flattened tensor."""
    size = batch_inputs(graph)[0].outputs[0].shape[0]
    return math.prod(tensor.shape[: kind.dim]) * kind.of < size


def _splits_tokens(plan: Plan, nodes: Nodes, axis: int) -> bool:
    """Return whether activations between tensor-parallel products are sharded by tokens.

    Tensors of four dims have heads and are skipped; a split of the last dim is one of features.
    """
    found: Counter[bool] = Counter()
    for node in nodes:
        tensor, kind = node.outputs[0], plan.choice[node.name].outputs[0][axis]
        if tensor.differentiable and len(tensor.shape) in (2, 3) and not node.is_leaf:
            if _is_token_split(tensor, kind):
                found[True] += math.prod(tensor.shape)
            elif kind in (I, R):
                found[False] += math.prod(tensor.shape)
    return found[True] > found[False]


def _is_token_split(tensor: Tensor, kind: Type) -> bool:
    return isinstance(kind, S) and kind.dim < len(tensor.shape) - 1


def _rest(plan: Plan, graph: Graph, nodes: Nodes, axis: int) -> str:
    """Describe how weights that are used whole on an axis are stored, by bytes; empty if whole."""
    found: Counter[str] = Counter()
    again = {c.tensor for c in plan.conversions if c.regather and c.axis == axis}
    regathered = 0
    for node in (node for node in nodes if node.op == "parameter"):
        tensor = node.outputs[0]
        if not is_used_split(plan, graph, tensor, axis):
            size = math.prod(tensor.shape) * tensor.itemsize
            found[_resting(plan.parameter[node.target], axis)] += size
            regathered += size * (tensor.name in again)
    if not found or found[WHOLE] >= MOST * found.total():
        return ""
    held = "regathered" if 2 * regathered > found[FSDP] else "kept"
    if found[FSDP] >= MOST * found.total():
        return f"{FSDP}, {held}"
    return _listed(found, {FSDP: f"{FSDP} {held}", ZERO: ZERO, WHOLE: WHOLE})


def _resting(entry: ParameterPlan, axis: int) -> str:
    if isinstance(entry.leaf[axis], S):
        return FSDP
    return ZERO if isinstance(entry.stored[axis], S) else WHOLE


def is_used_split(plan: Plan, graph: Graph, tensor: Tensor, axis: int) -> bool:
    """Return whether any operator reads the weight sharded on an axis."""
    return any(
        isinstance(form[axis], S)
        for reader in graph.consumers[tensor.name]
        for name, form in zip(reader.operands, plan.choice[reader.name].inputs, strict=True)
        if name == tensor.name
    )
