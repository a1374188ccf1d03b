"""Collective time of algorithms other than a single ring: trees, and hierarchical rings.

A mesh axis is a list of levels from the inside out: ranks inside a host, hosts, pods.  Level i has
r_i ranks, a link of latency a_i, and bandwidth b_i for each rank:

tree            all-reduce: up and down, 2 * sum(hops_i * a_i) + 2 n / b.  Hops are log2(r_i) between
                hosts and r_i - 1 inside a host, where a tree is a chain.  Two trees share the bytes, so
                that leaves work, too (Sanders, Speck, Traeff 2009; NCCL's src/graph/tuning.cc).
                broadcast: down only, in chunks.
hierarchical    reduce-scatters from the inside out, each on the previous result, and all-gathers back:
                per direction
                sum((r_i - 1) * a_i + (r_i - 1) / r_i * n_i / b_i), where n_(i+1) = n_i / r_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cost_models.exchanges import EXCHANGES
from cost_models.machine import Hardware, Level, Link

Seconds = float | None
"""None if the algorithm does not implement that kind of collective."""


def axis_levels(hardware: Hardware, stride: int, size: int) -> tuple[Level, ...]:
    """Return the levels of a mesh axis of this stride and size, innermost first (row-major ranks)."""
    borders = hardware.borders
    reached = min(size, max(1, borders[0][0] // stride))
    inner = hardware.intra_host.reaching(reached - 1)
    found = [Level(reached, inner.bytes_per_s, inner.latency_s, True)]
    for place, (devices, leaving) in enumerate(borders):
        beyond = borders[place + 1][0] // stride if place + 1 < len(borders) else size
        further = min(size, max(1, beyond))
        if further > reached:
            ranks, inside = math.ceil(further / reached), devices < hardware.devices_per_host
            found.append(Level(ranks, leaving.bytes_per_s, leaving.latency_s, inside))
            reached = further
    return tuple(level for level in found if level.ranks > 1)


def tree_seconds(kind: str, nbytes: float, link: Link) -> Seconds:
    """Return the seconds by a tree; None for kinds without one."""
    ways = EXCHANGES[kind].trees
    if not ways:
        return None
    latency_s = sum(_hops(level) * level.latency_s for level in link.levels)
    return ways * (latency_s + nbytes / link.bytes_per_s)


def hierarchical_seconds(kind: str, nbytes: float, link: Link) -> Seconds:
    """Return the seconds by a ring on each level in turn; None for kinds that cannot be nested."""
    ways = EXCHANGES[kind].nested
    return ways * _one_way(nbytes, link.levels) if ways else None


def _one_way(nbytes: float, levels: Sequence[Level]) -> float:
    seconds, part = 0.0, nbytes
    for level in levels:
        steps = level.ranks - 1
        seconds += steps * level.latency_s + steps / level.ranks * part / level.bytes_per_s
        part /= level.ranks
    return seconds


def _hops(level: Level) -> int:
    return level.ranks - 1 if level.inside_host else math.ceil(math.log2(level.ranks))


BY_NAME: Mapping[str, Callable[[str, float, Link], Seconds]] = {
    "tree": tree_seconds,
    "hierarchical": hierarchical_seconds,
}
