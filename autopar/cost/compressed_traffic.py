"""Prices gradients that travel compressed: the messages in place of sums, memory, and the compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autopar.cost.prices import Prices, is_sum
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import ITEMSIZE
from autopar.ir.mesh import Mesh
from autopar.ir.placement import R, S, Sharding
from autopar.plans.compressed_messages import (
    BLOCK,
    SCALE_NBYTES,
    compressed_hops,
    messages,
    padded_numel,
    pays,
    ranks_of,
    summed_hops,
)
from autopar.plans.decisions import Conversion
from autopar.plans.hops import hops_of
from autopar.request.compression import Compression

PASSES = {"powersgd": 6, "int8": 12, "fp8": 36}
"""Times that a compressed gradient is read or written on a rank: 29 MB took 20, 34 and 105 ms on a CPU's
core where a pass took 2.9 ms (2026-11-29)."""
PRODUCTS = 4
"""Products of PowerSGD of a matrix with a factor: both factors, what is left out, what is put back."""


def compressed(
    issued: Sequence[Sequence[Traffic]],
    steps: Sequence[Step | Conversion],
    part: tuple[int, ...],
    mesh: Mesh,
    compression: Compression | None,
) -> list[list[Traffic]]:
    """Return the collectives of a parameter's steps, with the messages in place of sums.

    `issued` are the collectives of each step without compression, and `part` is the shape of a rank's
    part at rest.
    """
    hops, numel = hops_of(steps, mesh), math.prod(part)
    small = compressed_hops(hops, part, compression)
    if compression is None or not small:
        return [list(parts) for parts in issued]
    ranks, at = ranks_of(hops), {each.hop.axis: each for each in summed_hops(hops)}

    def sent(traffic: Traffic) -> list[Traffic]:
        if not is_sum(traffic):
            return [traffic]
        found = at[mesh.names[traffic.axis]]
        itemsize = traffic.nbytes // (found.parts * numel)
        if found not in small:  # exact, but padded as in all buckets of compressed gradients
            padded = found.parts * padded_numel(numel, ranks, compression) * itemsize
            return [replace(traffic, nbytes=padded, carried_nbytes=traffic.nbytes)]
        every = messages(found, part, ranks, compression, itemsize)
        return [
            Traffic(traffic.axis, kind, traffic.direction, nbytes, traffic.nbytes, number)
            for number, (kind, nbytes) in enumerate(every)
        ]

    return [[each for traffic in parts for each in sent(traffic)] for parts in issued]


def compressing_seconds(issued: Sequence[Traffic], prices: Prices) -> float:
    """Return the seconds in which a rank compresses and restores a gradient, once per step."""
    compression = prices.compression
    if compression is None:
        return 0.0
    names = prices.mesh.names
    carried = {e.axis: e.carried_nbytes for e in issued if compression.selects(names[e.axis])}
    nbytes = sum(carried.values())
    if not nbytes:
        return 0.0
    low_rank = compression.method == "powersgd"
    flops = nbytes / ITEMSIZE["float32"] * 2 * PRODUCTS * compression.rank if low_rank else 0.0
    return prices.compressing(flops, PASSES[compression.method] * nbytes)


def error_nbytes(
    stored: Sharding, leaf: Sharding, part: tuple[int, ...], leaf_nbytes: int, prices: Prices
) -> int:
    """Return the bytes of a rank's state between steps: for each compressed sum, what it left out.

    That is a tensor of the leaf's size if the sum also scatters, else one of the size at rest.  PowerSGD
    keeps the right factor, too.  `leaf_nbytes` are those of the whole gradient on a rank.
    """
    compression, mesh = prices.compression, prices.mesh
    apart = zip(mesh.sizes, stored, leaf, strict=True)
    ranks = math.prod(size for size, rests, used in apart if rests != used)
    if compression is None or not pays(compression, part, ranks):
        return 0
    numel, found = math.prod(part), 0
    leaf_nbytes = leaf_nbytes // numel * padded_numel(numel, ranks, compression)
    for size, name, rests, used in zip(mesh.sizes, mesh.names, stored, leaf, strict=True):
        if size > 1 and used is R and rests != used and compression.selects(name):
            ways = _ways(stored, leaf, mesh)
            found += leaf_nbytes if isinstance(rests, S) else leaf_nbytes // ways
            if compression.method == "powersgd":
                found += compression.rank * leaf_nbytes // (ways * part[0])
    return found


def summing_nbytes(gradients: Sequence[int], ranks: int, compression: Compression) -> int:
    """Return the bytes in use while a bucket of these gradients, in bytes, is summed over `ranks` ranks.

    What the step leaves out takes as much as the gradients.  PowerSGD restores one matrix at a time;
    bytes need two messages, and three tensors of the part that a rank adds up.
    """
    together = sum(gradients)
    if compression.method == "powersgd":
        return together + max(gradients)
    messages = 2 * (BLOCK + SCALE_NBYTES) / BLOCK / ITEMSIZE["float32"]
    return round(together * (1.0 + messages + 3 / ranks))


def _ways(stored: Sharding, leaf: Sharding, mesh: Mesh) -> int:
    """Return the number of parts at rest that a rank's leaf consists of."""
    return math.prod(
        size
        for size, rests, used in zip(mesh.sizes, stored, leaf, strict=True)
        if isinstance(rests, S) and rests != used
    )
