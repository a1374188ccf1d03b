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
"""PowerSGD's factors must be smaller than the matrix by this factor, as in PyTorch's DDP hook."""


def pays(compression: Compression, part: Sequence[int]) -> bool:
    """Return whether a gradient is compressed, by a rank's part of it at rest (padding included)."""
    if compression.method != "powersgd":
        return math.prod(part) >= LEAST
    if len(part) < 2 or not math.prod(part):
        return False
    rows, columns = part[0], math.prod(part[1:])
    return RATE * compression.rank * (rows + columns) < rows * columns


@dataclass(frozen=True)
class CompressedHop:
    """A hop whose sum over ranks is compressed; the tensor then has `parts` of the parts at rest."""

    hop: Hop
    parts: int


def compressed_hops(hops: Sequence[Hop], compression: Compression) -> Iterator[CompressedHop]:
    """Yield the compressed ones of a gradient's hops, in the order in which a backward undoes them."""
    parts = math.prod(hop.ranks for hop in hops if hop.gathers)
    for hop in reversed(hops):
        if hop.reduces and compression.selects(hop.axis):
            yield CompressedHop(hop, parts)
        if hop.gathers:
            parts //= hop.ranks


def padded_numel(numel: int, hops: Sequence[Hop], compression: Compression | None) -> int:
    """Return the length of a part in a bucket: blocks divide what each rank adds up."""
    if compression is None or compression.method == "powersgd":
        return numel
    unit = BLOCK * math.prod(hop.ranks for hop in hops)
    return math.ceil(numel / unit) * unit


def factors(part: Sequence[int], parts: int) -> tuple[int, int]:
    """Return rows and columns of the matrix that PowerSGD takes a tensor of several parts for."""
    return parts * part[0], math.prod(part[1:])


def messages(
    at: CompressedHop,
    part: Sequence[int],
    hops: Sequence[Hop],
    compression: Compression,
    itemsize: int,
) -> tuple[tuple[str, int], ...]:
    """Return the collectives in place of a hop's sum, with their bytes; `itemsize`: of the gradient."""
    if compression.method == "powersgd":
        both = factors(part, at.parts)
        return tuple(("all_reduce", side * compression.rank * itemsize) for side in both)
    count = at.parts * padded_numel(math.prod(part), hops, compression)
    nbytes = count + count // BLOCK * SCALE_NBYTES
    sent = (("all_to_all", nbytes),)
    return sent if at.hop.gathers else (*sent, ("all_gather", nbytes))
