"""Builds a device's efficiency curves from calls that were timed on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cost_models.curves import Curve, Points, operator, rounded
from cost_models.machine import Device
from cost_models.measured.values import Pass, Timed, Work
from cost_models.ops import op_seconds, reached

PER_FACTOR = 2
"""Points of a curve per factor of two in size."""
Shares = list[tuple[float, float]]
"""Bytes of a forward, and the fraction of the roofline that was reached."""


def curves(every: Iterable[Timed], device: Device) -> tuple[Curve, ...]:
    """Return each operator's efficiency on this device, by dtype and size.

    Calls of about the same size are averaged (geometric mean) into one point, because calls of equal
    bytes still differ in shape.  An operator without a timed backward uses its forward's values.
    """
    bare = replace(device, curves=())
    found: dict[tuple[str, str], tuple[Shares, Shares]] = defaultdict(lambda: ([], []))
    for timed in every:
        call = timed.call
        if not call.forward.nbytes:
            continue
        forward, backward = found[operator(call.forward.op), call.forward.dtype]
        forward.append((call.forward.nbytes, _share(call.forward, timed.forward, bare)))
        if call.backward is not None and timed.backward is not None:
            backward.append((call.forward.nbytes, _share(call.backward, timed.backward, bare)))
    return tuple(
        Curve(name, dtype, _points(forward), _points(backward or forward))
        for (name, dtype), (forward, backward) in sorted(found.items())
    )


def _share(work: Work, took: Pass, device: Device) -> float:
    return reached(op_seconds(work.flops, work.nbytes, work.dtype, device), took.seconds, device)


def _points(shares: Shares) -> Points:
    """Return the points in ascending order of bytes, with neighbours merged."""
    return tuple(_joined(shares))


def _joined(shares: Shares) -> Iterator[tuple[float, float]]:
    bins: dict[int, Shares] = defaultdict(list)
    for nbytes, share in shares:
        bins[round(PER_FACTOR * math.log2(nbytes))].append((nbytes, share))
    for _, members in sorted(bins.items()):
        sizes, values = zip(*members, strict=True)
        yield rounded(_mean(sizes)), rounded(_mean(values))


def _mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
