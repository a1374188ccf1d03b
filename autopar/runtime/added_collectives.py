"""Runs collectives that users added.  The first result of each is compared with autopar's own.

A wrong collective would train wrong weights without an error.  All ranks of an axis issue the same
conversions in the same order, so they also make the same comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from autopar.errors import InputError
from autopar.ir.collectives import COLLECTIVES
from autopar.ir.placement import Type
from autopar.runtime._torch import disable_current_modes
from autopar.runtime.axes import Axis

Run = Callable[[torch.Tensor, Axis, Type, Type], torch.Tensor]
ROUNDINGS = 16
"""Sums in another order may differ by so many roundings of each rank's largest entry."""

_COMPARED: WeakKeyDictionary[dist.ProcessGroup, set[tuple[object, Type, Type]]] = (
    WeakKeyDictionary()
)


def run_added(
    name: str, x: torch.Tensor, axis: Axis, source: Type, target: Type, own: Run
) -> torch.Tensor:
    """Convert by the added collective.  `own` is autopar's collective for the same conversion.

    Raises `InputError` on all ranks of the axis if the first result is not that of `own`.
    """
    run = COLLECTIVES[name].run
    assert run is not None
    made: torch.Tensor = run(x, axis, source, target)
    if torch.compiler.is_compiling() or dist.get_backend(axis.group) == "fake":
        return made
    compared = _COMPARED.setdefault(axis.group, set())
    if (run, source, target) not in compared:
        with disable_current_modes(), torch.no_grad():  # traffic of the plan alone is counted
            _compare(name, x, axis, source, target, made, own)
        compared.add((run, source, target))
    return made


def _compare(
    name: str,
    x: torch.Tensor,
    axis: Axis,
    source: Type,
    target: Type,
    made: torch.Tensor,
    own: Run,
) -> None:
    right = own(x, axis, source, target)
    fault = _unlike(made, right, _largest(x, axis) * axis.size)
    flag = torch.tensor(float(bool(fault)), device=x.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX, axis.group)
    if flag:
        raise InputError(
            f"The collective {name!r} converts {source} to {target} on axis {axis.name!r} of "
            f"{axis.size} ranks wrongly: for a local tensor of shape {list(x.shape)} it returns "
            f"{fault or 'a wrong tensor on another rank'}. A wrong collective would train wrong "
            f"weights; correct its `run`, or leave it out."
        )


def _largest(x: torch.Tensor, axis: Axis) -> float:
    """Return the largest absolute entry on any rank of the axis; infinities and NaN do not count."""
    finite = x.double().nan_to_num(0.0, 0.0, 0.0).abs()
    most = finite.max() if x.numel() else finite.new_zeros(())
    most = most.float()  # gloo and NCCL reduce it
    dist.all_reduce(most, dist.ReduceOp.MAX, axis.group)
    return float(most)


def _unlike(made: torch.Tensor, right: torch.Tensor, scale: float) -> str:
    """Return how the result differs from the right one, or ""."""
    if made.shape != right.shape:
        return f"shape {list(made.shape)}, not {list(right.shape)}"
    if made.dtype != right.dtype or made.device != right.device:
        return f"{made.dtype} on {made.device}, not {right.dtype} on {right.device}"
    rounding = torch.finfo(right.dtype).eps if right.dtype.is_floating_point else 0.0
    allowed = ROUNDINGS * rounding * scale
    if torch.allclose(made, right, rtol=0.0, atol=allowed, equal_nan=True):
        return ""
    most = float((made.double() - right.double()).abs().max())
    return f"entries that are off by up to {most:.3g}, while rounding explains {allowed:.1g}"
