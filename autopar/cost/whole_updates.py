"""The cost of an optimizer's update, on this rank's part of a parameter or on the whole of it.

An optimizer that needs whole parameters gathers value, gradient and sharded states of each, and every
rank computes the same update (`autopar.runtime.whole_step`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autopar.cost.prices import Prices
from autopar.ir.conversion import Step
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.pads import true_shape
from autopar.ir.placement import I, S, Sharding
from autopar.memory.shards import local_nbytes

MOVED = 2
"""Tensors of a parameter's size that are gathered besides its states: its value and its gradient."""


def optimizer_seconds(tensor: Tensor, stored: Sharding, prices: Prices) -> float:
    """Return the seconds of the update of one parameter that rests as `stored`."""
    if prices.reads == "shards" or not is_sharded(stored, prices.mesh):
        return prices.update(prices.at_rest(local_nbytes(tensor, stored, prices.mesh), tensor))
    gathers = sum(
        prices.collective(replace(part, nbytes=round(prices.at_rest(part.nbytes, tensor))))
        for step in _gathers(stored, prices.mesh)
        for part in step.traffic(tensor.shape, tensor.itemsize, prices.mesh, True)
    )
    return prices.update(whole_nbytes(tensor, prices)) + (MOVED + prices.states) * gathers


def gathered_nbytes(parameters: Iterable[tuple[Tensor, Sharding]], prices: Prices) -> int:
    """Return the bytes of the whole tensors that exist at a time while the optimizer steps.

    They come in addition to what rests on the rank: those of the largest sharded parameter, or of all
    if the update of one depends on the others.
    """
    if prices.reads == "shards":
        return 0
    sizes = [
        whole_nbytes(tensor, prices)
        for tensor, stored in parameters
        if tensor.differentiable and is_sharded(stored, prices.mesh)
    ]
    together = sum(sizes) if prices.reads == "model" else max(sizes, default=0.0)
    return int((MOVED + prices.states) * together)


def replicated_nbytes(tensor: Tensor, prices: Prices) -> int:
    """Return the bytes of a parameter's states that have another shape, which every rank holds whole."""
    return int(prices.whole_states * whole_nbytes(tensor, prices)) if prices.whole_states else 0


def whole_nbytes(tensor: Tensor, prices: Prices) -> float:
    """Return the bytes of a whole parameter in the precision at rest, without padding."""
    count = 1
    for size in true_shape(tensor.shape, tensor.pads):
        count *= size
    return prices.at_rest(count * tensor.itemsize, tensor)


def is_sharded(stored: Sharding, mesh: Mesh) -> bool:
    """Whether several ranks hold different parts of a parameter."""
    return any(
        size > 1 and isinstance(kind, S) for kind, size in zip(stored, mesh.sizes, strict=True)
    )


def _gathers(stored: Sharding, mesh: Mesh) -> Iterator[Step]:
    """Yield the gathers of a parameter at rest, inner axes first."""
    here = stored
    for axis in reversed(range(len(stored))):
        if mesh.sizes[axis] > 1 and isinstance(here[axis], S):
            there = here.with_type(axis, I)
            yield Step(axis, here, there)
            here = there
