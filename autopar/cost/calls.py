"""Groups the collectives of a step into calls: those of single parameters are bucketed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from autopar.cost.prices import Prices
from autopar.ir.conversion import Traffic
from autopar.plans.buckets import buckets
from autopar.plans.estimate import Flow

Scope = Literal["step", "microbatch"]


def flows_of(
    issued: tuple[Traffic, ...], scope: Scope, prices: Prices, shares: int
) -> Iterator[Flow]:
    """Yield one flow per axis, kind and direction; gradients make at least `shares` buckets.

    Collectives issued once per step are bucketed.  Those of a microbatch are called one by one, and
    compute waits for them.
    """
    once = scope == "step"
    for parts in alike(issued):
        calls = in_buckets(parts, shares) if once else parts
        yield Flow(
            axis=prices.mesh.names[parts[0].axis],
            collective=parts[0].collective,
            direction=parts[0].direction,
            scope=scope,
            calls=len(calls),
            nbytes=sum(part.nbytes for part in parts),
            seconds=sum(map(prices.collective if once else prices.awaited, calls)),
        )


def calls_of(issued: Iterable[Traffic], shares: int) -> list[Traffic]:
    """Return the bucketed calls for the collectives of single parameters."""
    return [call for parts in alike(issued) for call in in_buckets(parts, shares)]


def alike(issued: Iterable[Traffic]) -> Iterator[list[Traffic]]:
    """Yield the collectives grouped by axis, kind and direction."""
    groups: defaultdict[tuple[int, str, str], list[Traffic]] = defaultdict(list)
    for part in issued:
        groups[part.axis, part.collective, part.direction].append(part)
    for _, parts in sorted(groups.items()):
        yield parts


def in_buckets(parts: list[Traffic], shares: int) -> list[Traffic]:
    """Return the bucketed calls of one group; gradients fill buckets from the last parameter on.

    Compressed gradients have buckets of their own, and each of their messages is a call.
    """
    gradients = parts[0].direction == "backward"
    of_kind: defaultdict[tuple[bool, int], list[Traffic]] = defaultdict(list)
    for part in parts[::-1] if gradients else parts:
        of_kind[part.carried_nbytes > 0, part.message].append(part)
    return [
        replace(
            filling[0],
            nbytes=sum(filling[place].nbytes for place in places),
            carried_nbytes=sum(filling[place].carried_nbytes for place in places),
        )
        for filling in of_kind.values()
        for places in buckets(
            [part.bucket_nbytes for part in filling], shares=shares if gradients else 1
        )
    ]
