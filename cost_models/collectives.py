"""Collective time: alpha-beta with ring algorithms (Thakur, Rabenseifner, Gropp 2005), or better ones.

`exchanges.py` has the facts of each kind, and says which bytes count.

If the link has fits, a group size that was measured costs its measured time.  Any other group size
costs the formula's time plus the excess over the formula of the next smaller measured size.  The
result is clamped between the times of the next smaller and the next larger measured size, so that
more ranks are never faster.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from statistics import NormalDist

from cost_models.algorithms import BY_NAME, axis_levels
from cost_models.errors import CostModelError
from cost_models.exchanges import EXCHANGES
from cost_models.fits import Fit
from cost_models.machine import Hardware, Link
from cost_models.ranges import check_count


def collective_seconds(kind: str, nbytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of one collective among `ranks` ranks over `link`.

    Reduce-scatter and all-gather are the two halves of an all-reduce.  If separate fits to noisy
    measurements make a half slower than the whole, the time of the all-reduce is returned.
    """
    seconds = _alone(kind, nbytes, ranks, link)
    whole = EXCHANGES[kind].half_of
    return min(seconds, _alone(whole, nbytes, ranks, link)) if whole else seconds


def _alone(kind: str, nbytes: float, ranks: int, link: Link) -> float:
    ring_s = _ring_seconds(kind, nbytes, ranks, link)
    if ranks == 1:
        return 0.0
    fits = [fit for fit in link.fits if fit.collective == kind]
    for fit in fits:
        if fit.ranks == ranks:
            return fit.seconds(nbytes)
    fewer = max((f for f in fits if 1 < f.ranks < ranks), key=_ranks_of, default=None)
    more = min((f for f in fits if f.ranks > ranks), key=_ranks_of, default=None)
    least_s = 0.0
    if fewer is not None:
        least_s = fewer.seconds(nbytes)
        ring_s += max(0.0, least_s - _ring_seconds(kind, nbytes, fewer.ranks, link))
    others = (BY_NAME[name](kind, nbytes, link) for name in link.algorithms)
    seconds = min([ring_s, *(seconds for seconds in others if seconds is not None)])
    most_s = math.inf if more is None else more.seconds(nbytes)
    return max(least_s, min(seconds, most_s))


def _ranks_of(fit: Fit) -> int:
    return fit.ranks


def _ring_seconds(kind: str, nbytes: float, ranks: int, link: Link) -> float:
    messages, sent = ring_terms(kind, nbytes, ranks)
    return messages * link.latency_s + sent / link.bytes_per_s


def ring_terms(kind: str, nbytes: float, ranks: int) -> tuple[float, float]:
    """Return the ring algorithm's terms per rank: number of sequential messages, and bytes sent."""
    _check_kind(kind)
    if not ranks >= 1 or ranks % 1:
        raise CostModelError(f"A {kind} among {ranks} ranks makes no sense.")
    if not nbytes >= 0:
        raise CostModelError(f"A {kind} of {nbytes} bytes makes no sense.")
    exchange = EXCHANGES[kind]
    return exchange.messages(ranks), exchange.share(ranks) * nbytes


def _check_kind(kind: str) -> None:
    if kind not in EXCHANGES:
        raise CostModelError(f"Unknown collective {kind!r}; known are {', '.join(EXCHANGES)}.")


def lateness(ranks: int) -> float:
    """Return the delay of the last of `ranks` ranks, relative to the last of two; 0 for one rank.

    A rank's delay is the sum of many independent ones and hence normal.  The result is the expected
    maximum over the ranks (Kruskal and Weiss 1985), by Blom's approximation (1958).
    """
    check_count("The ranks", ranks)
    return _latest(ranks) / _latest(2)


def _latest(ranks: int) -> float:
    # By symmetry from the lower tail: near probability 1 a float has too few digits left.
    return -NormalDist().inv_cdf(0.625 / (ranks + 0.25))


def axis_link(
    hardware: Hardware, stride: int, size: int, kind: str = "all_reduce", ranks: int | None = None
) -> Link:
    """Return the effective link of a collective on a mesh axis of this stride and size (row-major).

    `ranks` is the size of the whole mesh; None: stride * size.  If host boundaries split only some of
    the axis' groups, or split them unevenly, the group with the fewest ranks on one host decides,
    because all others wait for it; then only rings are considered.

    Devices that are wired directly use only the wires between devices of the axis.

    A ring leaves a host, or another group of devices, once, however many of its ranks are inside.  It
    uses the adapters of all those ranks (rails), and one step per group pays the longer latency.  In an
    all-to-all each rank has its own adapter for what it sends to ranks outside the group; those
    messages pay the longer latency.

    Measurements among the ranks inside a group are a lower bound for the whole axis.
    """
    _check_kind(kind)
    check_count("The ranks from one to the next of the axis", stride)
    check_count("The ranks of the axis", size)
    if ranks is not None and ranks <= (size - 1) * stride:
        raise CostModelError(
            f"An axis of {size} ranks, {stride} from one to the next, does not fit into {ranks} ranks."
        )
    narrowest, _ = hardware.borders[0]
    link = hardware.intra_host.reaching(min(size, narrowest // stride) - 1)
    even = True
    for devices, leaving in hardware.borders:
        inside, apart = parted(devices, stride, size, ranks or stride * size)
        if apart == 1:
            break
        even = even and inside * apart == size
        rails, late = float(inside), apart / size
        if EXCHANGES[kind].scatters and inside < size:
            late = (size - inside) / (size - 1)
            rails = 1 / late
        link = replace(
            leaving,
            bytes_per_s=min(link.bytes_per_s, leaving.bytes_per_s * rails),
            latency_s=link.latency_s + (leaving.latency_s - link.latency_s) * late,
            fits=_fits_of(size, inside, devices, leaving)
            + _fits_within(min(size, max(1, devices // stride)), link),
        )
    others = tuple(name for name in hardware.chosen_from if name != "ring")
    if not (others and even):
        return link
    return replace(link, levels=axis_levels(hardware, stride, size), algorithms=others)


@cache
def parted(devices: int, stride: int, size: int, ranks: int) -> tuple[int, int]:
    """Return the worst case of how blocks of `devices` consecutive devices split a mesh axis' groups.

    The result is the fewest ranks of a group in one block, and the most blocks that one group spans.
    """
    span, fewest, most = stride * size, size, 1
    for block in range(0, min(ranks, math.lcm(devices, span)), span):
        for first in range(block, block + stride):
            together = Counter(rank // devices for rank in range(first, first + span, stride))
            fewest, most = min(fewest, *together.values()), max(most, len(together))
    return fewest, most


def _fits_of(size: int, inside: int, devices: int, leaving: Link) -> tuple[Fit, ...]:
    """Return the fits of `leaving`, the link out of blocks of `devices`, that apply to an axis.

    These are fits of the same number of ranks, and fits of other numbers that leave a block on equally
    many rails as the `inside` ranks of this axis.  A measured group had the rails of the whole block, or
    one if it comprised only some of the busy ranks.
    """
    return tuple(
        fit
        for fit in leaving.fits
        if fit.ranks == size or (devices if fit.host_ranks in (0, fit.ranks) else 1) == inside
    )


def _fits_within(together: int, link: Link) -> tuple[Fit, ...]:
    """Return the fits of at most `together` ranks, the number that fits into one block."""
    return tuple(fit for fit in link.fits if fit.ranks <= together)
