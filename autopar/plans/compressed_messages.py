"""What travels in place of a compressed gradient, for the runtime and the cost model.

A gradient is compressed or not at all, by the shape of a rank's part of it at rest.  On its way from
leaf to rest it consists of several such parts, until the hops that scatter it are undone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.plans.hops import Hop
from autopar.request.compression import Compression

BLOCK = 128
"""Elements that share a scale, if gradients travel as one byte per element."""
SCALE_NBYTES = 4
LEAST = 1024
"""Smallest part, in elements, that is worth a message of bytes."""
RATE = 2
"""PowerSGD's factors must be smaller than the matrix by this factor, as in PyTorch's DDP hook; by no
more than this factor do blocks pad a part that travels as bytes."""


def pays(compression: Compression, part: Sequence[int], ranks: int) -> bool:
    """Return whether a gradient is compressed, by a rank's part of it at rest (padding included).

    `ranks` is the number of ranks that all hops of the gradient have together.
    """
    numel = math.prod(part)
    if compression.method != "powersgd":
        return numel >= LEAST and padded_numel(numel, ranks, compression) <= RATE * numel
    if len(part) < 2 or not numel:
        return False
    return RATE * compression.rank * (part[0] + numel // part[0]) < numel


@dataclass(frozen=True)
class SummedHop:
    """A hop that sums over ranks, while the tensor has `parts` of the parts at rest."""

    hop: Hop
    parts: int


def summed_hops(hops: Sequence[Hop]) -> Iterator[SummedHop]:
    """Yield the hops that sum a gradient, in the order in which a backward undoes them."""
    parts = math.prod(hop.ranks for hop in hops if hop.gathers)
    for hop in reversed(hops):
        if hop.reduces:
            yield SummedHop(hop, parts)
        if hop.gathers:
            parts //= hop.ranks


def compressed_hops(
    hops: Sequence[Hop], part: Sequence[int], compression: Compression | None
) -> tuple[SummedHop, ...]:
    """Return the hops over which a gradient travels compressed; () if it never does."""
    if compression is None or not pays(compression, part, ranks_of(hops)):
        return ()
    return tuple(each for each in summed_hops(hops) if compression.selects(each.hop.axis))


def ranks_of(hops: Sequence[Hop]) -> int:
    """Return the number of ranks that all hops have together."""
    return math.prod(hop.ranks for hop in hops)


def padded_numel(numel: int, ranks: int, compression: Compression | None) -> int:
    """Return the length of a part in a compressed bucket: blocks divide what each rank adds up."""
    if compression is None or compression.method == "powersgd":
        return numel
    unit = BLOCK * ranks
    return math.ceil(numel / unit) * unit


def factors(part: Sequence[int], parts: int) -> tuple[int, int]:
    """Return rows and columns of the matrix that PowerSGD takes a tensor of several parts for."""
    return parts * part[0], math.prod(part[1:])


def messages(
    at: SummedHop,
    part: Sequence[int],
    ranks: int,
    compression: Compression,
    itemsize: int,
) -> tuple[tuple[str, int], ...]:
    """Return the collectives in place of a hop's sum, with their bytes; `itemsize`: of the gradient."""
    if compression.method == "powersgd":
        both = factors(part, at.parts)
        return tuple(("all_reduce", side * compression.rank * itemsize) for side in both)
    count = at.parts * padded_numel(math.prod(part), ranks, compression)
    nbytes = count + count // BLOCK * SCALE_NBYTES
    sent = (("all_to_all", nbytes),)
    return sent if at.hop.gathers else (*sent, ("all_gather", nbytes))
