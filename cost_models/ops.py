"""Operator time by the roofline (Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

from cost_models.errors import CostModelError
from cost_models.machine import Device


def op_seconds(flops: float, nbytes: float, dtype: str, device: Device) -> float:
    """Seconds of one operator: the slower of arithmetic and memory, plus what every call costs.

    `flops` counts multiplications and additions; `nbytes` is what is read and written.  Arithmetic
    in a dtype that the profile lacks (integers, say) is priced as float32.
    """
    if flops < 0 or nbytes < 0:
        raise CostModelError(f"An operator cannot do {flops} operations on {nbytes} bytes.")
    peaks = device.flops_per_s
    peak = peaks.get(dtype, peaks.get("float32", max(peaks.values())))
    arithmetic = flops / (peak * device.matmul_efficiency)
    return max(arithmetic, _memory_seconds(nbytes, device)) + device.launch_s


def _memory_seconds(nbytes: float, device: Device) -> float:
    """A cache serves the first bytes, memory the others (large tensors cost page faults as well)."""
    cached = min(nbytes, device.cache_bytes)
    seconds = cached / device.cache_bytes_per_s if cached else 0.0
    return (seconds + (nbytes - cached) / device.bytes_per_s) / device.memory_efficiency
