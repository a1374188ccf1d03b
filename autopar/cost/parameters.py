"""How a parameter may rest and enter the step, and what that costs once per step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from autopar.cost.covering import late
from autopar.cost.prices import Prices, is_sum
from autopar.cost.routes import ALL, Routes
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import Graph, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad, cutting_axis, exchanging_axis, rests, true_shape
from autopar.ir.placement import I, N, S, Sharding
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import NBYTES, SHARES, buckets

LITTLE = 0.5
"""Overlap that is no reason for more buckets: where two ranks take two cores, next to nothing hides, but
calibrations find 0.05 to 0.42.  ViT took 1.02 to 1.06 times as long as DDP there with one share, 1.04 to
1.06 with two, 1.07 to 1.10 with four, where two were priced lowest at an overlap of 0.19."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One candidate: how a parameter rests, what forward and backward see, and how uses gather it."""

    stored: Sharding
    leaf: Sharding
    regather: bool


def storages(tensor: Tensor, leaves: tuple[Sharding, ...], mesh: Mesh) -> tuple[Storage, ...]:
    """Every way to store the parameter for each of its leaf types."""
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
    """Keep the leaf's splits; on each other axis rest whole, or split one more dim."""
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
    """Split the first dim that still divides, inside the splits it has."""
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
    """The steps from rest to leaf; their backward, reversed, is the gradient's reduction.

    One direct step per axis that differs, in the cheapest order: the runtime does them in buckets.
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
    """Seconds per step of one parameter: those that are always paid, and those that may hide."""

    visible_s: float
    hideable_s: float


def gradient_shares(graph: Graph, prices: Prices) -> int:
    """How many buckets gradients make at least: as many as leave least of their sums to be waited for.

    Those with `late` gradients hide nothing, and each has a latency.  They are priced as all-reduces on
    the axis where most of these is waited for.
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
    """How all weights and gradients travel: how many buckets gradients make at least, mean sizes of
    their buckets, and of the gradients' bytes the share that is in buckets which are full before the
    backward ends."""

    shares: int
    weights_nbytes: int
    gradients_nbytes: int
    early: float

    @classmethod
    def of(cls, graph: Graph, prices: Prices) -> Travelling:
        """Gradients in as many buckets as are worth while."""
        gradients = _gradients(graph)
        shares = gradient_shares(graph, prices)
        filled = _filled(gradients, shares)
        early = sum(bucket.nbytes for bucket in filled if not bucket.is_late)
        every = sum(bucket.nbytes for bucket in filled)
        return cls(shares, _mean(_filled(gradients, 1)), _mean(filled), early / max(1, every))


@dataclass(frozen=True, slots=True)
class Gradients:
    """One or several: bytes, and whether any of them is whole only as the backward ends."""

    nbytes: int
    is_late: bool


def _gradients(graph: Graph) -> list[Gradients]:
    """Of each parameter, as the backward makes them."""
    ends = late(graph)
    leaves = (node.outputs[0] for node in reversed(graph.parameters_as_read))
    return [Gradients(t.nbytes, t.name in ends) for t in leaves if t.differentiable]


def _filled(gradients: Sequence[Gradients], shares: int) -> list[Gradients]:
    """Each bucket."""
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
    """Gathering the weight, reducing its gradient, both with others, and updating it.

    The gradient's first collective runs beside the backward, as far as buckets are full early, and
    hides there but for what they take from each other; those after it wait for its end.
    """
    mesh = prices.mesh
    update = 0.0
    if tensor.differentiable:
        update = prices.update(prices.at_rest(local_nbytes(tensor, storage.stored, mesh), tensor))
    steps = gather_steps(tensor, storage, routes)
    issued = [part for step in steps for part in prices.reduced(step, tensor)]
    issued += exchanges(tensor, storage.stored, mesh, prices.master_itemsize)
    first = next((s for s in reversed(steps) if _backward(prices.reduced(s, tensor))), None)
    hideable = () if first is None else _backward(prices.reduced(first, tensor))

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
    return StorageSeconds(update + laid + every_s - hideable_s, hideable_s)


def summed_seconds(tensor: Tensor, leaf: Sharding, prices: Prices) -> float:
    """Adding its gradient of one microbatch to that of those before."""
    if not tensor.differentiable:
        return 0.0
    return prices.summed(prices.at_rest(local_nbytes(tensor, leaf, prices.mesh), tensor))


def exchanges(
    tensor: Tensor, stored: Sharding, mesh: Mesh, gradient_itemsize: int = 0
) -> tuple[Traffic, ...]:
    """Equal parts of what rests against the entries of the step, and gradients back; once a step.

    Bytes are those of the rank that has most in the step, the first.
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
        """All of them."""
        return self.parameter + self.gradient + self.optimizer


def storage_nbytes(
    tensor: Tensor, storage: Storage, prices: Prices, is_reached: bool
) -> StorageBytes:
    """What a parameter occupies: at rest, gathered where the leaf differs, older versions of that,
    gradient, and the optimizer's state, which is made where a gradient arrives."""
    mesh = prices.mesh
    # Padding of the last rank too.
    stored = int(prices.at_rest(local_nbytes(tensor, storage.stored, mesh), tensor))
    leaf = local_nbytes(tensor, storage.leaf, mesh)
    gathered = leaf if leaf != stored or tensor.pads else 0
    if not tensor.differentiable:
        return StorageBytes(stored + gathered, 0, 0)
    older = (prices.versions - 1) * leaf
    states = int(prices.states * stored) if is_reached else 0
    has_gradient = is_reached or travels(storage.stored, storage.leaf, tensor.pads, mesh)
    gradient = int(prices.at_rest(leaf, tensor)) if has_gradient else 0
    return StorageBytes(stored + gathered + older, gradient, states)


def travels(stored: Sharding, leaf: Sharding, pads: tuple[Pad, ...], mesh: Mesh) -> bool:
    """Whether a parameter's gradient has a place in a bucket, which stays and always is there."""
    steps = zip(mesh.sizes, stored, leaf, strict=True)
    is_carried = any(size > 1 and rests != used for size, rests, used in steps)
    return is_carried or exchanging_axis(stored, pads, mesh) is not None
