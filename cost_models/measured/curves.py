"""Efficiency curves of a device from calls that were timed on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cost_models.curves import ALIKE, Curve, Points
from cost_models.machine import Device
from cost_models.measured.values import Pass, Timed, Work
from cost_models.ops import op_seconds

LEAST = 0.1
"""Of an operator's time, what it spends on its tensors at least."""
PER_FACTOR = 2
"""Points of a curve per factor of two in size."""
Shares = list[tuple[float, float]]
"""Bytes of a forward, and the share of the roofline's speed that was reached."""


def curves(every: Iterable[Timed], device: Device) -> tuple[Curve, ...]:
    """What each operator reaches of this device's roofline, by dtype and size.

    Calls of about the same size are one point, their geometric mean: shapes differ in more than bytes.
    An operator without a backward that was timed has its forward's shares there.
    """
    bare = replace(device, curves=())
    found: dict[tuple[str, str], tuple[Shares, Shares]] = defaultdict(lambda: ([], []))
    for timed in every:
        call = timed.call
        if not call.forward.nbytes:
            continue
        forward, backward = found[operator(call.forward.op), call.forward.dtype]
        forward.append((call.forward.nbytes, reached(call.forward, timed.forward, bare)))
        if call.backward is not None and timed.backward is not None:
            backward.append((call.forward.nbytes, reached(call.backward, timed.backward, bare)))
    return tuple(
        Curve(name, dtype, points(forward), points(backward or forward))
        for (name, dtype), (forward, backward) in sorted(found.items())
    )


def operator(op: str) -> str:
    """The name that a curve has for ``aten.mm.default``: that of the operator it is timed as."""
    name = op.split(".")[1] if "." in op else op
    return ALIKE.get(name, name)


def reached(work: Work, took: Pass, device: Device) -> float:
    """Both without what every call costs, which is a part of the measured time at most."""
    modelled_s = op_seconds(work.flops, work.nbytes, work.dtype, device) - device.launch_s
    own_s = max(took.seconds - device.launch_s, LEAST * took.seconds)
    return modelled_s / own_s


def points(shares: Shares) -> Points:
    """Ascending in bytes, neighbours joined."""
    return tuple(_joined(shares))


def _joined(shares: Shares) -> Iterator[tuple[float, float]]:
    bins: dict[int, Shares] = defaultdict(list)
    for nbytes, share in shares:
        bins[round(PER_FACTOR * math.log2(nbytes))].append((nbytes, share))
    for _, members in sorted(bins.items()):
        sizes, values = zip(*members, strict=True)
        yield _rounded(_mean(sizes)), _rounded(_mean(values))


def _mean(values: Iterable[float]) -> float:
    """The geometric one."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
