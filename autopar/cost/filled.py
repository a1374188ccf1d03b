"""The gradient buckets of a plan, as the runtime groups them, for the simulation of memory."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from autopar.cost.compressed_traffic import summing_nbytes
from autopar.cost.parameters import frees, is_scattered
from autopar.cost.prices import Prices
from autopar.ir.graph import Graph, Tensor
from autopar.ir.pads import exchanging_axis
from autopar.memory.filling import GradientBucket
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import grouped, in_backward
from autopar.plans.compressed_messages import SummedHop, compressed_hops
from autopar.plans.decisions import ParameterPlan
from autopar.plans.hops import hops
from autopar.request.compression import Compression


@dataclass(frozen=True, eq=False)
class _Gradient:
    """A gradient that is reduced in a bucket."""

    tensor: Tensor
    plan: ParameterPlan
    prices: Prices

    @property
    def key(self) -> Hashable:
        """What the gradients of one bucket have in common; the dtype at rest follows from the leaf's."""
        mesh = self.prices.mesh
        over = exchanging_axis(self.plan.stored, self.plan.pads, mesh)
        return hops(self.plan, mesh), self.tensor.dtype, over, self.is_compressed

    @property
    def is_compressed(self) -> bool:
        """Whether it travels compressed over some axis."""
        return bool(self.compressed_hops)

    @property
    def compressed_hops(self) -> tuple[SummedHop, ...]:
        """The hops over which it travels compressed."""
        mesh = self.prices.mesh
        part = self.plan.stored.local_shape(self.tensor.shape, mesh)
        return compressed_hops(hops(self.plan, mesh), part, self.prices.compression)

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf."""
        return local_nbytes(self.tensor, self.plan.leaf, self.prices.mesh)


def gradient_buckets(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, shares: int
) -> tuple[GradientBucket, ...]:
    """Return at least `shares` buckets in the order of their reductions.

    There are none if no buffer is freed in the backward: then all stay throughout.
    """
    if not any(frees(each.stored, each.leaf, prices) for each in parameters):
        return ()
    travelling = _travelling(graph, parameters, prices)
    filled = grouped(reversed(travelling), lambda g: g.key, lambda g: g.nbytes, shares)
    return tuple(_bucket(each, prices, graph.reached) for each in in_backward(travelling, filled))


def compressing_nbytes(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices, shares: int
) -> int:
    """Return the bytes that the largest compressed bucket takes while it is summed at the end."""
    compression = prices.compression
    if compression is None:
        return 0
    small = [each for each in _travelling(graph, parameters, prices) if each.is_compressed]
    filled = grouped(reversed(small), lambda g: g.key, lambda g: g.nbytes, shares)
    return max((_summing_nbytes(bucket, prices, compression) for bucket in filled), default=0)


def _summing_nbytes(bucket: Sequence[_Gradient], prices: Prices, compression: Compression) -> int:
    first = bucket[0].compressed_hops[0]
    sizes = [int(prices.at_rest(each.nbytes, each.tensor)) for each in bucket]
    return summing_nbytes(sizes, first.hop.ranks, compression)


def _travelling(
    graph: Graph, parameters: tuple[ParameterPlan, ...], prices: Prices
) -> list[_Gradient]:
    """Return the gradients that are reduced in buckets, in the order in which the forward reads them."""
    planned = {each.name: each for each in parameters}
    read = ((node.outputs[0], planned[node.target]) for node in graph.parameters_as_read)
    return [
        _Gradient(tensor, plan, prices)
        for tensor, plan in read
        if tensor.differentiable
        and (
            hops(plan, prices.mesh)
            or exchanging_axis(plan.stored, plan.pads, prices.mesh) is not None
        )
    ]


def _bucket(
    gradients: Sequence[_Gradient], prices: Prices, reached: Collection[str]
) -> GradientBucket:
    first = gradients[0].plan
    leaves = frozenset((each.tensor.name, each.plan.leaf) for each in gradients)
    if not frees(first.stored, first.leaf, prices):
        return GradientBucket(leaves, 0, 0)
    parts = [
        (local_nbytes(each.tensor, each.plan.stored, prices.mesh), each.tensor)
        for each in gradients
        if each.tensor.name in reached
    ]
    kept = [int(prices.at_rest(*part)) for part in parts]
    nbytes = sum(int(prices.in_bucket(each.nbytes, each.tensor)) for each in gradients)
    if not prices.reduces_low:
        return GradientBucket(leaves, nbytes, sum(kept))
    scatters = is_scattered(first.stored, first.leaf, prices.mesh)
    left = sum(part for part, _ in parts) if scatters else nbytes
    return GradientBucket(leaves, nbytes, sum(kept), left)
