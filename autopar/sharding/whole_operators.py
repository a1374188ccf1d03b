"""Says why an operator is not split by the samples of a batch."""

from __future__ import annotations

from autopar.ir.graph import Graph, Node, short
from autopar.request.constraints import BATCH
from autopar.rules import rule_of
from autopar.sharding.sharding_problem import batch_inputs, where_is


def why_whole(node: Node, graph: Graph) -> str:
    """Return the reason why the samples of a batch are not split in an operator, with its place."""
    shapes = ", ".join(str(list(graph.tensors[name].shape)) for name in node.operands)
    place = f" ({node.origin.file}:{node.origin.line})" if node.origin.file else ""
    if short(node.op) == "embedding_bag":
        return (
            f"{node.path}{place} is an embedding bag that is not split by samples. Bags of mode sum or "
            "mean are, if their ids are a matrix of shape [samples, length], without offsets, "
            "per_sample_weights and padding_idx; so are nn.Embedding and a sum of its rows."
        )
    if rule_of(node, graph).source == "none":
        return (
            f"autopar has no rule for {node.op} by which its samples are independent of each other: "
            f"{node.path}{place}, operands {shapes}."
        )
    return f"{node.path}{place} mixes the samples of a batch (operands {shapes})."


def first_whole(graph: Graph) -> Node | None:
    """Return the first operator that reads samples and whose results, no scalars, have none."""
    dims, carriers = where_is(BATCH, graph), {node.outputs[0].name for node in batch_inputs(graph)}
    for node in graph.nodes:
        if node.is_leaf or carriers.isdisjoint(node.operands):
            continue
        splits = zip(node.outputs, dims[node.name][len(node.operands) :], strict=True)
        made = {tensor.name for tensor, dim in splits if dim is not None}
        if not made and any(tensor.shape for tensor in node.outputs):
            return node
        carriers |= made
    return None
