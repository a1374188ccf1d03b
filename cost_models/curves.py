"""How much of the roofline's speed each operator reaches, by its size: measured, on one device."""

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
"""Operators that are timed as another one."""
IN_GENERAL: Mapping[str, str] = MappingProxyType(
    {"biased_attention": "scaled_dot_product_attention"}
)
"""What an operator is in general, as which it counts where it has no curve of its own."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One operator in one dtype: bytes that a forward reads and writes, ascending, and the share of the
    roofline's speed at that size, beside what every call costs.

    The backward stands at the bytes of its forward.  Caches may make a share larger than one.
    """

    operator: str
    dtype: str
    forward: Points
    backward: Points

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Key and value of every figure, and the range that it must be in."""
        for direction, points in (("forward", self.forward), ("backward", self.backward)):
            yield f"{name}.{direction}: the number of points", len(points), "positive"
            before = 0.0
            for nbytes, reached in points:
                yield f"{name}.{direction}: the bytes to {nbytes}", nbytes - before, "positive"
                yield f"{name}.{direction}: the share at {nbytes}", reached, "positive"
                before = nbytes

    def misnamed(self) -> Iterator[str]:
        """What is wrong with its names."""
        counts = ALIKE.get(self.operator)
        if counts is not None:
            yield (
                f"device.curves: {self.operator!r} is timed as {counts!r}; write operator = "
                f'"{counts}".'
            )
        elif not is_operator(self.operator):
            yield (
                f"device.curves: {self.operator!r} is no operator of torch's; one of your own is "
                f"written with its namespace, as in mine.{self.operator}. {meant(self.operator, TIMED)}"
            )
        if self.dtype not in DTYPES:
            yield f"device.curves: {self.dtype!r} is no dtype of torch's. {meant(self.dtype, DTYPES)}"


def share(
    curves: Collection[Curve], op: str, dtype: str, direction: Direction, nbytes: float
) -> float:
    """Of the roofline's speed, for an operator as torch names it; 1 where nothing is known of it.

    `nbytes` are the forward's.  Between measured sizes shares and sizes are interpolated by their
    logarithms; beyond them the nearest counts.  In a dtype that was not measured an operator is as in
    float32.
    """
    name = operator(op)
    found = _of(name, curves) or _of(IN_GENERAL.get(name, name), curves)
    curve = found.get(dtype) or found.get("float32")
    if curve is None or not nbytes:
        return 1.0
    return between(curve.forward if direction == "forward" else curve.backward, nbytes)


def _of(name: str, curves: Iterable[Curve]) -> dict[str, Curve]:
    """An operator's, by dtype."""
    return {curve.dtype: curve for curve in curves if curve.operator == name}


def is_known(curves: Iterable[Curve], op: str) -> bool:
    """Whether an operator has a curve: it was timed with all that it calls."""
    return operator(op) in {curve.operator for curve in curves}


def operator(op: str) -> str:
    """The name that a curve has for ``aten.mm.default``: that of the operator it is timed as.

    Another library's keeps its namespace: ``mine.mm`` is not torch's.
    """
    namespace, _, rest = op.partition(".")
    name = rest.split(".")[0] or op
    return ALIKE.get(name, name) if namespace in ("aten", "autopar", op) else f"{namespace}.{name}"


def rounded(value: float) -> float:
    """Four digits: more would only pretend."""
    return float(f"{value:.4g}")


def between(points: Points, amount: float) -> float:
    """On straight lines between points, both axes being logarithmic."""
    place = bisect_left(points, (amount,))
    if place in (0, len(points)):
        return points[min(place, len(points) - 1)][1]
    (low, before), (high, after) = points[place - 1], points[place]
    part = math.log(amount / low) / math.log(high / low)
    return math.exp((1.0 - part) * math.log(before) + part * math.log(after))
