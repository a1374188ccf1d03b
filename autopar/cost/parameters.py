"""Candidates for storing a parameter at rest and in the step, and their cost once per step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from autopar.cost.compressed_traffic import compressed, compressing_seconds, error_nbytes
from autopar.cost.covering import late
from autopar.cost.prices import Prices, is_sum
from autopar.cost.routes import ALL, Routes
from autopar.cost.whole_updates import optimizer_seconds, replicated_nbytes
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import Graph, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad, cutting_axis, exchanging_axis, rests, true_shape
from autopar.ir.placement import I, N, S, Sharding
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import NBYTES, SHARES, buckets

LITTLE = 0.5
"""A lower hidden share counts as none when the number of buckets is chosen.  With two ranks on two cores
almost nothing overlaps, but calibrations find 0.05 to 0.42.  There ViT took 1.02 to 1.06 times as long
as DDP with one share, 1.04 to 1.06 with two, 1.07 to 1.10 with four; at 0.19 two were priced lowest."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One candidate: sharding at rest, sharding in the step, and whether the backward gathers again."""

    stored: Sharding
    leaf: Sharding
    regather: bool


def storages(tensor: Tensor, leaves: tuple[Sharding, ...], mesh: Mesh) -> tuple[Storage, ...]:
    """Return every candidate for storing the parameter, for each of its shardings in the step."""
    return _storages(tensor.shape, tensor.pads, tensor.differentiable, leaves, mesh)


@cache
def _storages(
    shape: tuple[int, ...],
    pads: tuple[Pad, ...],
    differentiable: bool,
    leaves: tuple[Sharding, ...],
    mesh: Mesh,
) -> tuple[Storage, ...]:
    found: dict[Storage, None] = {}
    for leaf in leaves:
        for stored in _stored(shape, pads, differentiable, leaf, mesh):
            found[Storage(stored, leaf, False)] = None
            if leaf.is_split:
                found[Storage(stored, leaf, True)] = None
    return tuple(found)


def _stored(
    shape: tuple[int, ...],
    pads: tuple[Pad, ...],
    differentiable: bool,
    leaf: Sharding,
    mesh: Mesh,
) -> Iterator[Sharding]:
    """Yield the shardings at rest: keep the leaf's splits; on other axes stay whole or split a dim."""
    whole = I if differentiable else N
    options = [(kind,) if isinstance(kind, S) else (whole, None) for kind in leaf]
    for picks in itertools.product(*options):
        form: Sharding | None = Sharding(tuple(whole if kind is None else kind for kind in picks))
        for axis, kind in enumerate(picks):
            if kind is None and form is not None and mesh.sizes[axis] > 1:
                form = _split_once_more(shape, pads, form, axis, mesh)
        if form is not None and rests(form, pads, mesh):
            yield form


def _split_once_more(
    shape: tuple[int, ...], pads: tuple[Pad, ...], form: Sharding, axis: int, mesh: Mesh
) -> Sharding | None:
    """Split the first dim that the axis still divides, inside its existing splits."""
    padded = {pad.dim: pad for pad in pads}
    for dim in range(len(shape)):
        cuts = form.cuts(dim)
        inside = cuts[-1][0] * mesh.sizes[cuts[-1][1]] if cuts else 1
        if dim in padded and not cuts:
            inside = padded[dim].before
        finer = form.with_type(axis, S(dim, inside))
        if finer.fits(shape, mesh) and (dim not in padded or rests(finer, pads, mesh)):
            return finer
    return None


def gather_steps(tensor: Tensor, storage: Storage, routes: Routes) -> tuple[Step, ...]:
    """Return the steps from the sharding at rest to the leaf; their backward reduces the gradient.

    There is one direct step per differing axis, in the cheapest order.  The runtime issues them in
    buckets.
    """
    stored, leaf = storage.stored, storage.leaf
    closure = routes.closure(tensor, (stored, leaf), ALL)
    axes = [axis for axis in range(len(stored)) if stored[axis] != leaf[axis]]
    chains = (tuple(_chain(stored, leaf, order)) for order in itertools.permutations(axes))
    return min(chains, key=lambda chain: sum(closure.cost(s.source, s.target) for s in chain))


def _chain(stored: Sharding, leaf: Sharding, order: tuple[int, ...]) -> Iterator[Step]:
    here = stored
    for axis in order:
        there = here.with_type(axis, leaf[axis])
        yield Step(axis, here, there)
        here = there


@dataclass(frozen=True, slots=True)
class StorageSeconds:
    """Seconds per step of one parameter: those always visible, and those that can be hidden."""

    visible_s: float
    hideable_s: float


def gradient_shares(graph: Graph, prices: Prices) -> int:
    """Return the minimum number of gradient buckets: the one that exposes least of the reductions.

    More buckets overlap more, but each has a latency, and buckets with `late` gradients hide nothing.
    Buckets are priced as all-reduces on the axis that exposes most.
    """
    axes = [axis for axis, size in enumerate(prices.mesh.sizes) if size > 1]
    gradients = _gradients(graph)
    if not axes or sum(each.nbytes for each in gradients) >= NBYTES * SHARES[0]:
        return SHARES[0]

    def waited_s(axis: int, shares: int) -> float:
        hidden_share = prices.hidden_share(axis) if prices.hidden_share(axis) >= LITTLE else 0.0
        return sum(
            prices.collective(Traffic(axis, "all_reduce", "backward", bucket.nbytes))
            * (1.0 if bucket.is_late else 1.0 - hidden_share)
            for bucket in _filled(gradients, shares)
        )

    return min(SHARES, key=lambda shares: max(waited_s(axis, shares) for axis in axes))


@dataclass(frozen=True)
class Travelling:
    """The buckets of all parameters: minimum number of gradient buckets, mean bucket sizes in bytes, and
    the share of gradient bytes in buckets that are full before the backward ends (`early`)."""

    shares: int
    weights_nbytes: int
    gradients_nbytes: int
    early: float

    @classmethod
    def of(cls, graph: Graph, prices: Prices) -> Travelling:
        """Compute it from a graph, with `gradient_shares` gradient buckets."""
        gradients = _gradients(graph)
        shares = gradient_shares(graph, prices)
        filled = _filled(gradients, shares)
        early = sum(bucket.nbytes for bucket in filled if not bucket.is_late)
        every = sum(bucket.nbytes for bucket in filled)
        return cls(shares, _mean(_filled(gradients, 1)), _mean(filled), early / max(1, every))


@dataclass(frozen=True, slots=True)
class Gradients:
    """One or several gradients: bytes, and whether any is complete only when the backward ends."""

    nbytes: int
    is_late: bool


def _gradients(graph: Graph) -> list[Gradients]:
    """Return the gradient of each parameter, in the order in which the backward produces them."""
    ends = late(graph)
    leaves = (node.outputs[0] for node in reversed(graph.parameters_as_read))
    return [Gradients(t.nbytes, t.name in ends) for t in leaves if t.differentiable]


def _filled(gradients: Sequence[Gradients], shares: int) -> list[Gradients]:
    """Return the buckets that the gradients fill."""
    every = buckets([each.nbytes for each in gradients], shares=shares)
    return [
        Gradients(
            sum(gradients[place].nbytes for place in places),
            any(gradients[place].is_late for place in places),
        )
        for places in every
    ]


def _mean(filled: Sequence[Gradients]) -> int:
    return max(1, sum(bucket.nbytes for bucket in filled) // max(1, len(filled)))


def storage_seconds(
    tensor: Tensor,
    storage: Storage,
    routes: Routes,
    prices: Prices,
    travelling: Travelling,
) -> StorageSeconds:
    """Return the cost of gathering the weight, reducing its gradient and updating it.

    Collectives are priced as the parameter's share of a mean bucket.  The gradient's first collective
    overlaps with the backward, for the share of buckets that fill early, reduced by their contention.
    Later collectives wait for the end of the backward.
    """
    mesh = prices.mesh
    update = 0.0
    if tensor.differentiable:
        update = optimizer_seconds(tensor, storage.stored, prices)
    steps = gather_steps(tensor, storage, routes)
    by_step = compressed(
        [tuple(prices.reduced(step, tensor)) for step in steps],
        steps, storage.stored.local_shape(tensor.shape, mesh), mesh, prices.compression,
    )  # fmt: skip
    issued = [part for parts in by_step for part in parts]
    compressing_s = compressing_seconds(issued, prices)
    issued += exchanges(tensor, storage.stored, mesh, prices.reduced_itemsize)
    hideable = first_reduction(by_step)

    def size_of(part: Traffic) -> int:
        gathers = part.direction == "forward"
        return travelling.weights_nbytes if gathers else travelling.gradients_nbytes

    def seconds(part: Traffic) -> float:
        return prices.in_buckets(part, size_of(part), prices.collective)

    every_s = sum(map(seconds, issued))
    hideable_s = travelling.early * sum(
        prices.hidden_share(part.axis) * seconds(part) for part in hideable
    )
    laid = prices.gradient([part for part in issued if is_sum(part)])
    laid += sum(prices.in_buckets(p, size_of(p), prices.copied) for p in issued if not is_sum(p))
    return StorageSeconds(update + laid + compressing_s + every_s - hideable_s, hideable_s)


def first_reduction(by_step: Iterable[Sequence[Traffic]]) -> tuple[Traffic, ...]:
    """Return the first collectives in the reduction of a gradient, from those of a parameter's steps.

    Of a compressed gradient it is the first message alone.
    """
    found = next(filter(None, map(_backward, reversed([*by_step]))), ())
    return found[:1] if any(part.carried_nbytes for part in found) else found


def summed_seconds(tensor: Tensor, leaf: Sharding, prices: Prices) -> float:
    """Return the seconds to add a microbatch's gradient to the accumulated gradient."""
    if not tensor.differentiable:
        return 0.0
    return prices.summed(prices.at_rest(local_nbytes(tensor, leaf, prices.mesh), tensor))


def exchanges(
    tensor: Tensor, stored: Sharding, mesh: Mesh, gradient_itemsize: int = 0
) -> tuple[Traffic, ...]:
    """Return the once-per-step all-to-alls between even shards at rest and padded shards in the step.

    The backward exchanges gradients in the other direction.  Bytes are those of the first rank, which
    has most entries in the step.
    """
    axis = exchanging_axis(stored, tensor.pads, mesh)
    if axis is None:
        return ()
    others = [pad for pad in tensor.pads if cutting_axis(pad, stored, mesh) != axis]
    count = math.prod(stored.local_shape(true_shape(tensor.shape, others), mesh))
    forward = Traffic(axis, "all_to_all", "forward", count * tensor.itemsize)
    wide = max(gradient_itemsize, tensor.itemsize)
    backward = Traffic(axis, "all_to_all", "backward", count * wide)
    return (forward, backward) if tensor.differentiable else (forward,)


def _backward(traffic: Iterable[Traffic]) -> tuple[Traffic, ...]:
    return tuple(part for part in traffic if part.direction == "backward")


@dataclass(frozen=True, slots=True)
class StorageBytes:
    """Bytes of one parameter on one rank."""

    parameter: int
    gradient: int
    optimizer: int

    @property
    def total(self) -> int:
        """Parameter, gradient and optimizer state together."""
        return self.parameter + self.gradient + self.optimizer


def storage_nbytes(
    tensor: Tensor, storage: Storage, prices: Prices, is_reached: bool
) -> StorageBytes:
    """Return the bytes of a parameter: at rest, gathered if the leaf differs, older versions of the
    leaf, gradient, and optimizer state, which exists only if the parameter receives a gradient.

    What compression leaves out of a step counts as optimizer state.
    """
    mesh = prices.mesh
    # Includes the padding of the last rank.
    stored = int(prices.at_rest(local_nbytes(tensor, storage.stored, mesh), tensor))
    leaf = local_nbytes(tensor, storage.leaf, mesh)
    is_cast = prices.at_rest(1.0, tensor) > 1.0
    gathered = leaf if leaf != stored or is_cast or tensor.pads else 0
    if not tensor.differentiable:
        return StorageBytes(stored + gathered, 0, 0)
    older = (prices.versions - 1) * leaf
    states = int(prices.states * stored) + replicated_nbytes(tensor, prices) if is_reached else 0
    if frees(storage.stored, storage.leaf, prices):
        gradient = stored if is_reached else 0
    else:
        has_gradient = is_reached or travels(storage.stored, storage.leaf, tensor.pads, mesh)
        gradient = int(prices.at_rest(leaf, tensor)) if has_gradient else 0
    part = storage.stored.local_shape(tensor.shape, mesh)
    whole = int(prices.at_rest(leaf, tensor)) if is_reached else 0
    left_out = error_nbytes(storage.stored, storage.leaf, part, whole, prices)
    if left_out and not frees(storage.stored, storage.leaf, prices):
        gradient *= 2  # that of the last step is there until that of this one is complete
    return StorageBytes(stored + gathered + older, gradient, states + left_out)


def frees(stored: Sharding, leaf: Sharding, prices: Prices) -> bool:
    """Return whether a backward frees the buffer in which a parameter's gradient is reduced.

    That is the case if it keeps a part of the sum (ZeRO-2), or the sum in a higher precision.  Gradients
    of several microbatches are summed whole before they are reduced.
    """
    steps = zip(prices.mesh.sizes, stored, leaf, strict=True)
    is_low = prices.reduces_low and any(s > 1 and rests != used for s, rests, used in steps)
    return prices.microbatches == 1 and (is_low or is_scattered(stored, leaf, prices.mesh))


def is_scattered(stored: Sharding, leaf: Sharding, mesh: Mesh) -> bool:
    """Return whether a rank keeps a part of a parameter's gradient."""
    steps = zip(mesh.sizes, stored, leaf, strict=True)
    return any(size > 1 and isinstance(rests, S) and rests != used for size, rests, used in steps)


def travels(stored: Sharding, leaf: Sharding, pads: tuple[Pad, ...], mesh: Mesh) -> bool:
    """Return whether a parameter's gradient lives in a bucket, which is allocated throughout."""
    steps = zip(mesh.sizes, stored, leaf, strict=True)
    is_carried = any(size > 1 and rests != used for size, rests, used in steps)
    return is_carried or exchanging_axis(stored, pads, mesh) is not None
