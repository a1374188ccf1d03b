"""Estimates one training step of a plan: seconds by kind, memory by kind, and the exact traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from autopar.cost.calls import flows_of
from autopar.cost.covering import covering, late
from autopar.cost.filled import compressing_nbytes, gradient_buckets
from autopar.cost.issued import Running, by_parameter, by_step
from autopar.cost.laid import Laid, laid_alone, laid_at_use, laid_once
from autopar.cost.operators import OperatorSeconds, operator_seconds
from autopar.cost.parameters import (
    Storage,
    StorageBytes,
    first_reduction,
    gradient_shares,
    storage_nbytes,
    travels,
)
from autopar.cost.prefetched import prefetched
from autopar.cost.prices import Prices
from autopar.cost.whole_updates import gathered_nbytes, optimizer_seconds
from autopar.ir.blocks import Recompute
from autopar.ir.conversion import Traffic
from autopar.ir.graph import Graph, Saved, Tensor
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.recompute_set import again
from autopar.memory.saved_tensors import SavedTensors
from autopar.memory.timeline import MemoryTimeline
from autopar.plans.buckets import buckets
from autopar.plans.decisions import Choice, Conversion, ParameterPlan
from autopar.plans.estimate import Estimate, Flow, Parts
from autopar.plans.timing import OpTime


def estimate(
    graph: Graph,
    choices: tuple[Choice, ...],
    parameters: tuple[ParameterPlan, ...],
    conversions: tuple[Conversion, ...],
    prices: Prices,
    saved: Mapping[str, Saved],
    precision: str,
    recompute: Mapping[str, Recompute],
    in_flight: int = 1,
    prefetch: bool = False,
) -> Estimate:
    """Return the predicted step of one microbatch on one rank.

    `in_flight` is the number of microbatches whose activations are alive at once.
    """
    shardings = {c.node: c.sharding for c in choices}
    run_again = again(graph, shardings, conversions, recompute, saved, prices.mesh, precision)
    running = Running(graph, choices, conversions, prices.mesh, precision, run_again)
    shares = gradient_shares(graph, prices)
    flows, laid = communicated(graph, parameters, running, prices, shares)
    spent = {
        c.node: operator_seconds(graph.node[c.node], c.sharding, graph, prices) for c in choices
    }
    hideable = hideable_by_axis(graph, parameters, prices, precision, shares)
    keeps = SavedTensors(
        graph, shardings, conversions, prices.mesh, saved, run_again, precision, prefetch
    )
    moments = timeline(graph, parameters, keeps, prices, shares)
    kept_nbytes = moments.keeps.nbytes()
    parts = parts_of(
        spent, run_again.computed, covering(graph, shares), prices, laid,
        update_seconds(graph, parameters, prices), hideable, moments.lives,
    )  # fmt: skip
    hidden_s = min(sum(hideable.values()), parts.covers_s)
    hidden_s += sum(each.hidden_s for each in parts.prefetched)
    ending_nbytes = ending(graph, parameters, prices, shares)
    resting = [storage_bytes(leaf, p, prices, graph) for leaf, p in _with_leaf(graph, parameters)]
    return Estimate(
        compute_s=parts.forward_s + parts.backward_s + parts.update_s,
        exposed_s=sum(flow.seconds for flow in flows) - hidden_s,
        hidden_s=hidden_s,
        flows=flows,
        parameter_nbytes=sum(b.parameter for b in resting),
        gradient_nbytes=sum(b.gradient for b in resting),
        optimizer_nbytes=sum(b.optimizer for b in resting),
        activation_nbytes=kept_nbytes,
        working_nbytes=max(working(moments), ending_nbytes - in_flight * kept_nbytes),
        in_flight=in_flight,
        operators=op_times(spent, moments),
        parts=parts,
        absent_nbytes=moments.absent_nbytes,
    )


def communicated(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    running: Running,
    prices: Prices,
    shares: int,
) -> tuple[tuple[Flow, ...], Laid]:
    """Return the collectives, once per step and per microbatch, and the seconds of local copies."""
    precision, compression = running.precision, prices.compression
    of_parameters = tuple(by_parameter(graph, parameters, prices.mesh, precision, compression))
    of_microbatch = running.per_microbatch()
    step = tuple(part for sent in of_parameters for part in sent)
    microbatch = tuple(sent.traffic for sent in of_microbatch)
    flows = (*flows_of(step, "step", prices, shares),
             *flows_of(microbatch, "microbatch", prices, shares))  # fmt: skip
    return flows, (
        laid_once(of_parameters, prices, shares)
        + laid_at_use(of_microbatch, prices)
        + laid_alone(running.copies(), prices)
    )


def timeline(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    keeps: SavedTensors,
    prices: Prices,
    shares: int,
) -> MemoryTimeline:
    """Return the memory of a microbatch, with the gradients that its backward allocates anew."""
    fresh = {
        (leaf.name, p.leaf): storage_bytes(leaf, p, prices, graph).gradient
        for leaf, p in _with_leaf(graph, parameters)
        if prices.microbatches == 1 and not travels(p.stored, p.leaf, leaf.pads, prices.mesh)
    }
    return MemoryTimeline(keeps, fresh, gradient_buckets(graph, parameters, prices, shares))


def parts_of(
    spent: Mapping[str, OperatorSeconds],
    computed_again: Set[str],
    beside: Mapping[str, float],
    prices: Prices,
    laid: Laid,
    update_s: float,
    hideable: Mapping[str, float],
    lives: Lifetimes,
) -> Parts:
    """Return a rank's compute seconds by kind, including the local copies of conversions.

    `beside` is the share of each operator's backward that may hide gradient reductions.
    """
    forward = {name: each.forward_s for name, each in spent.items()}
    back = {
        name: each.backward_s + (each.forward_s if name in computed_again else 0.0)
        for name, each in spent.items()
    }
    covers_s = prices.covering_share * sum(beside[name] * back[name] for name in back)
    early = tuple(prefetched(lives, forward, back, prices))
    taken_s = sum(each.hidden_s for each in early if each.direction == "backward")
    return Parts(
        sum(forward.values()) + laid.forward_s,
        sum(back.values()) + laid.backward_s,
        update_s,
        tuple(hideable.items()),
        max(0.0, covers_s - taken_s),
        early,
    )


def op_times(spent: Mapping[str, OperatorSeconds], moments: MemoryTimeline) -> tuple[OpTime, ...]:
    """Return the seconds of every operator, and the bytes in use while it runs."""
    return tuple(
        OpTime(
            name,
            spent[name].forward_s,
            spent[name].backward_s,
            spent[name].source,
            moment.forward_nbytes,
            moment.backward_nbytes,
        )
        for name, moment in moments.by_node().items()
    )


def hideable_by_axis(
    graph: Graph,
    parameters: tuple[ParameterPlan, ...],
    prices: Prices,
    precision: str,
    shares: int,
) -> dict[str, float]:
    """Return, by axis name, the seconds of the gradients' first collectives that can be hidden.

    Only collectives issued once per step count.  Gradients make at least `shares` buckets.  A bucket
    with a `late` gradient is full when the backward ends, and hides nothing.
    """
    ends = late(graph)
    planned = {parameter.name: parameter for parameter in parameters}
    issued: defaultdict[tuple[int, str], list[tuple[Traffic, bool]]] = defaultdict(list)
    for leaf in reversed(graph.parameters_as_read):
        parameter = planned[leaf.target]
        sent = by_step(parameter, graph, prices.mesh, precision, prices.compression)
        for part in first_reduction(sent):
            issued[part.axis, part.collective].append((part, leaf.outputs[0].name in ends))
    found: defaultdict[str, float] = defaultdict(float)
    for (axis, _), parts in issued.items():
        places = buckets([part.bucket_nbytes for part, _ in parts], shares=shares)
        early = [each for each in places if not any(parts[place][1] for place in each)]
        for each in early:
            together = replace(parts[0][0], nbytes=sum(parts[place][0].nbytes for place in each))
            hidden_s = prices.hidden_share(axis) * prices.collective(together)
            found[prices.mesh.names[axis]] += hidden_s
    return dict(found)


def update_seconds(graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices) -> float:
    """Return the seconds of the optimizer step on one rank's parameters at rest."""
    return sum(
        optimizer_seconds(leaf, p.stored, prices)
        for leaf, p in _with_leaf(graph, parameters)
        if leaf.differentiable
    )


def storage_bytes(
    tensor: Tensor, parameter: ParameterPlan, prices: Prices, graph: Graph
) -> StorageBytes:
    """Return the bytes of a planned parameter, its gradient and its optimizer state on one rank."""
    storage = Storage(parameter.stored, parameter.leaf, False)
    return storage_nbytes(tensor, storage, prices, tensor.name in graph.reached)


def ending(graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, shares: int) -> int:
    """Return the bytes that the end of a step needs besides what rests: its last sums, or the update."""
    return max(
        gathered_nbytes(((leaf, p.stored) for leaf, p in _with_leaf(graph, parameters)), prices),
        compressing_nbytes(graph, parameters, prices, shares),
    )


def working(moments: MemoryTimeline) -> int:
    """Return the working set in bytes: peak memory minus the saved activations."""
    return max(0, moments.most_nbytes - moments.keeps.nbytes())


def _with_leaf(
    graph: Graph, parameters: tuple[ParameterPlan, ...]
) -> Iterator[tuple[Tensor, ParameterPlan]]:
    """Yield each parameter's tensor in the graph, and its plan."""
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    return ((leaf[p.name], p) for p in parameters)
