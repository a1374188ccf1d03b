"""Computes how much of the weights' communication is hidden where loops gather one block ahead.

What runs while a block computes is hidden by at most that block's compute, less what is lost to
contention (`Prices.hidden_share`): in the forward the gather of the next block; in the backward that of
the block before, and the reduction of the gradients of the block behind.  Blocks of a loop are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from autopar.cost.prices import Prices
from autopar.ir.conversion import Direction, Traffic
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.messages import Carried, made_by
from autopar.memory.shards import local_nbytes
from autopar.plans.estimate import Prefetched


def prefetched(
    lives: Lifetimes,
    forward_s: Mapping[str, float],
    backward_s: Mapping[str, float],
    prices: Prices,
) -> Iterator[Prefetched]:
    """Yield it by pass and axis; the mappings are each operator's compute seconds."""
    found: defaultdict[tuple[Direction, int], list[tuple[float, float]]] = defaultdict(list)
    for function, collective in lives.early.items():
        axis = collective.conversions[0].axis
        share = prices.hidden_share(axis)
        gather_s = share * prices.awaited(_gather(collective, lives, whole=True))
        before_s = prices.covering_share * _compute(lives, function - 1, forward_s)
        found["forward", axis].append((gather_s, before_s))
        is_rerun, late_s = _is_rerun(lives, function), 0.0
        if is_rerun or any(made_by(c) in lives.regathered for c in collective.conversions):
            late_s += share * prices.awaited(_gather(collective, lives, whole=is_rerun))
        if nbytes := collective.reduced_nbytes:
            reduction = Traffic(axis, "reduce_scatter", "backward", nbytes)
            late_s += share * prices.awaited(reduction)
        own_s = prices.covering_share * _compute(lives, function, backward_s)
        found["backward", axis].append((late_s, own_s))
    for (direction, axis), seconds in found.items():
        hideable, covers = map(sum, zip(*seconds, strict=True))
        yield Prefetched(prices.mesh.names[axis], direction, hideable, covers)


def _is_rerun(lives: Lifetimes, function: int) -> bool:
    first = lives.functions.places[function][0]
    return lives.graph.nodes[first].name in lives.keeps.again.node_names


def _compute(lives: Lifetimes, function: int, seconds: Mapping[str, float]) -> float:
    nodes = (lives.graph.nodes[place] for place in lives.functions.places[function])
    return sum(seconds[node.name] for node in nodes if node.name in seconds)


def _gather(collective: Carried, lives: Lifetimes, whole: bool) -> Traffic:
    """Return the gather's traffic: of all its weights, or of those that the backward gathers again."""
    conversions = [c for c in collective.conversions if whole or made_by(c) in lives.regathered]
    tensors, mesh = lives.graph.tensors, lives.keeps.mesh
    nbytes = sum(local_nbytes(tensors[c.tensor], c.target, mesh) for c in conversions)
    return Traffic(conversions[0].axis, "all_gather", "forward", nbytes)
