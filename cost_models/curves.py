"""Efficiency curves: the measured fraction of the roofline that each operator reaches, by size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cost_models.names import DTYPES, TIMED, is_operator, meant

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
Points = tuple[tuple[float, float], ...]

ALIKE: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(["mm", "matmul", "bmm", "addmm", "baddbmm", "mv", "einsum"], "linear")
    | dict.fromkeys(["cross_entropy_loss", "cross_entropy_sum"], "cross_entropy")
    | dict.fromkeys(["nll_loss", "nll_loss_nd"], "cross_entropy")
    | dict.fromkeys(["log_softmax", "_softmax", "_log_softmax"], "softmax")
    | dict.fromkeys(["sub", "rsub"], "add")
    | dict.fromkeys(["div", "where", "masked_fill", "relu"], "mul")
    | dict.fromkeys(["sum", "var", "amax"], "mean")
    | dict.fromkeys(["sin"], "cos")
    | dict.fromkeys(["sqrt", "reciprocal"], "rsqrt")
    | dict.fromkeys(["stack", "clone", "contiguous"], "cat")
)
"""Operators that use another operator's curve."""
IN_GENERAL: Mapping[str, str] = MappingProxyType(
    {"biased_attention": "scaled_dot_product_attention"}
)
"""Fallback curve for operators without one of their own."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Efficiency of one operator in one dtype: points of forward bytes (read and written, ascending) and
    the fraction of the roofline reached at that size, excluding the launch cost.

    The backward is listed by the bytes of its forward.  Caches can make a fraction exceed one.
    """

    operator: str
    dtype: str
    forward: Points
    backward: Points

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Yield key, value and required range of every number of the curve."""
        for direction, points in (("forward", self.forward), ("backward", self.backward)):
            yield f"{name}.{direction}: the number of points", len(points), "positive"
            before = 0.0
            for nbytes, reached in points:
                yield f"{name}.{direction}: the bytes to {nbytes}", nbytes - before, "positive"
                yield f"{name}.{direction}: the share at {nbytes}", reached, "positive"
                before = nbytes

    def misnamed(self) -> Iterator[str]:
        """Yield an error message for each unknown name."""
        counts = ALIKE.get(self.operator)
        if counts is not None:
            yield (
                f"device.curves: {self.operator!r} is timed as {counts!r}; write operator = "
                f'"{counts}".'
            )
        elif not is_operator(self.operator):
            yield (
                f"device.curves: {self.operator!r} is not an operator of torch; write a custom "
                f"one with its namespace, as in mine.{self.operator}. "
                f"{meant(self.operator, TIMED)}"
            )
        if self.dtype not in DTYPES:
            yield (
                f"device.curves: {self.dtype!r} is not a dtype of torch. "
                f"{meant(self.dtype, DTYPES)}"
            )


def share(
    curves: Collection[Curve], op: str, dtype: str, direction: Direction, nbytes: float
) -> float:
    """Return the fraction of the roofline that torch's operator `op` reaches; 1 without a curve.

    `nbytes` are the forward's.  Between measured sizes the interpolation is log-log; outside them the
    nearest point is used.  A dtype that was not measured uses the float32 curve.
    """
    name = operator(op)
    found = _of(name, curves) or _of(IN_GENERAL.get(name, name), curves)
    curve = found.get(dtype) or found.get("float32")
    if curve is None or not nbytes:
        return 1.0
    return between(curve.forward if direction == "forward" else curve.backward, nbytes)


def _of(name: str, curves: Iterable[Curve]) -> dict[str, Curve]:
    """Return an operator's curves by dtype."""
    return {curve.dtype: curve for curve in curves if curve.operator == name}


def is_known(curves: Iterable[Curve], op: str) -> bool:
    """Return whether an operator has a curve, timed with everything that it calls."""
    return operator(op) in {curve.operator for curve in curves}


def operator(op: str) -> str:
    """Return the curve's name for an operator such as ``aten.mm.default``.

    Operators of other libraries keep their namespace: ``mine.mm`` is not torch's.
    """
    namespace, _, rest = op.partition(".")
    name = rest.split(".")[0] or op
    return ALIKE.get(name, name) if namespace in ("aten", "autopar", op) else f"{namespace}.{name}"


def rounded(value: float) -> float:
    """Round to four significant digits; measurements are no more precise."""
    return float(f"{value:.4g}")


def between(points: Points, amount: float) -> float:
    """Interpolate linearly between points on log-log axes."""
    place = bisect_left(points, (amount,))
    if place in (0, len(points)):
        return points[min(place, len(points) - 1)][1]
    (low, before), (high, after) = points[place - 1], points[place]
    part = math.log(amount / low) / math.log(high / low)
    return math.exp((1.0 - part) * math.log(before) + part * math.log(after))
