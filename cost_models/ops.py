"""Operator time by the roofline (Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

import math

from cost_models.curves import DIRECTIONS, Direction, share
from cost_models.errors import CostModelError
from cost_models.machine import Device
from cost_models.names import DTYPES, meant

LEAST = 0.1
"""Of an operator's measured time, what it spends on its tensors at least."""
ADAMW_CALLS = 5
"""What AdamW spends on one parameter whatever its size, in operator calls with their backward: 123 us on
a CPU where a call takes 25 us.  (Stepping on DTensors it is 27; the runtime steps on local tensors.)"""
TOGETHER_CALLS = 3
"""The same where each operator takes all parameters at once (``foreach``): 18 us of a DTensor where one
kernel for everything takes 14."""
FUSED_CALLS = 2
"""The same of AdamW in one kernel for all parameters: 1.8, and 2.9 on DTensors."""
GRADIENT_CALLS = 2
"""What a CPU spends on a gradient beside the copy into its bucket, in operator calls: a hook, its place,
the sum's return.  15 us with the copy's own call, where a call takes 6.2."""
SCATTER_CALLS = 1
"""The same of a weight's gradient that is scattered at its use, where no hook is called for it: 17 us
with the copy's own call, where a call takes 10.2."""
SPLIT_CALLS = 5
"""What it takes a CPU to put a product's weight gradient off, in operator calls: all operators of the
forward pass through a mode of Python's, its gradient through a hook.  46 us where a call takes 9.7."""

MESSAGE_CALLS = 15
"""What a CPU spends on a message between stages, whatever its size, in operator calls: to start it, on
the backend's thread, to wait.  130 to 170 us of a send or a receive where a call takes 10.2."""


def op_seconds(
    flops: float,
    nbytes: float,
    dtype: str,
    device: Device,
    op: str = "",
    direction: Direction = "forward",
) -> float:
    """Seconds of one operator: the slower of arithmetic and memory, plus what every call costs.

    `flops` counts multiplications and additions; `nbytes` is what is read and written.  Arithmetic
    in a dtype that the profile lacks (integers, say) is priced as float32.  `op`: its name, by which
    the device's curves may know how much of that speed it reaches; a backward moves twice the bytes
    of its forward.  Raises `CostModelError` where a figure is negative, endless or no number, or the
    dtype or the direction none.
    """
    if direction not in DIRECTIONS:
        raise CostModelError(f"{direction!r} is no direction; write forward or backward.")
    if not (0 <= flops < math.inf and 0 <= nbytes < math.inf):
        raise CostModelError(f"An operator cannot do {flops} operations on {nbytes} bytes.")
    peak = _peak(dtype, device)
    arithmetic = flops / (peak * device.matmul_efficiency)
    of_forward = nbytes if direction == "forward" else nbytes / 2
    reached = share(device.curves, op, dtype, direction, of_forward) if device.curves else 1.0
    return max(arithmetic, _memory_seconds(nbytes, device)) / reached + device.launch_s


def reached(modelled_s: float, seconds: float, device: Device) -> float:
    """The share of a roofline's speed that was reached.

    Both are taken without what every call costs, which is a part of the measured seconds at most.
    """
    own_s = max(seconds - device.launch_s, LEAST * seconds)
    return (modelled_s - device.launch_s) / own_s


def message_copy_seconds(nbytes: float, device: Device) -> float:
    """Seconds in which a message of so many bytes is laid out for a collective, or taken apart after it.

    It is read and written once, by way of memory: what other ranks wrote is in no cache of this one.
    """
    _check_amount("bytes", nbytes)
    return 2.0 * nbytes / (device.bytes_per_s * device.memory_efficiency) + device.launch_s


def gradient_seconds(nbytes: float, device: Device) -> float:
    """Seconds in which a parameter's gradient of so many bytes is laid in its bucket for the ranks' sum.

    Devices that queue kernels do what is not the copy itself meanwhile.
    """
    calls = GRADIENT_CALLS if device.kind == "cpu" else 0
    return message_copy_seconds(nbytes, device) + calls * device.launch_s


def scattered_seconds(nbytes: float, device: Device, count: int = 1) -> float:
    """The same of so many weights' gradients in a message of so many bytes that scatters them."""
    _check_whole("gradients", count)
    calls = 1 + SCATTER_CALLS if device.kind == "cpu" else 1
    return message_copy_seconds(nbytes, device) + (calls * count - 1) * device.launch_s


def adamw_seconds(nbytes: float, device: Device, fused: bool = False) -> float:
    """Seconds in which ``torch.optim.AdamW`` updates one parameter of so many bytes.

    By default mul, lerp, mul, addcmul, sqrt, div, add and addcdiv read and write 20 tensors of the
    parameter's size: on a CPU parameter after parameter, elsewhere each operator of all parameters.
    Where it is told to, one kernel reads parameter, gradient and two moments, and writes three of them.
    """
    _check_amount("bytes", nbytes)
    if fused:
        operators, tensors, calls = 1, 7, FUSED_CALLS
    elif device.kind == "cpu":
        operators, tensors, calls = 8, 20, ADAMW_CALLS
    else:
        operators, tensors, calls = 1, 20, TOGETHER_CALLS
    launches = (calls - operators) * device.launch_s
    return operators * op_seconds(0.0, tensors / operators * nbytes, "float32", device) + launches


def split_seconds(products: int, device: Device) -> float:
    """Seconds that are lost where the weight gradients of so many products are put off.

    The products themselves are the same, whenever they are made, and what Python does beside is hidden
    where kernels are queued: on all devices but CPUs.
    """
    _check_whole("products", products)
    return products * SPLIT_CALLS * device.launch_s if device.kind == "cpu" else 0.0


def messages_seconds(count: int, device: Device) -> float:
    """Seconds that a rank spends on so many sends or receives, beside what the link takes for them.

    Devices that have kernels for it spend none of their own time.
    """
    _check_whole("messages", count)
    return count * MESSAGE_CALLS * device.launch_s if device.kind == "cpu" else 0.0


def _peak(dtype: str, device: Device) -> float:
    """Operations per second."""
    peaks = device.flops_per_s
    if dtype not in peaks and dtype not in DTYPES:
        raise CostModelError(f"{dtype!r} is no dtype of torch's. {meant(dtype, DTYPES)}")
    return peaks[dtype if dtype in peaks else "float32"]


def _check_amount(what: str, amount: float) -> None:
    if not amount >= 0:
        raise CostModelError(f"There cannot be {amount} {what}.")


def _check_whole(what: str, count: float) -> None:
    _check_amount(what, count)
    if count % 1:
        raise CostModelError(f"There cannot be {count} {what}: they are whole.")


def _memory_seconds(nbytes: float, device: Device) -> float:
    """A cache serves the first bytes, memory the others (large tensors cost page faults as well)."""
    cached = min(nbytes, device.cache_bytes)
    seconds = cached / device.cache_bytes_per_s if cached else 0.0
    return (seconds + (nbytes - cached) / device.bytes_per_s) / device.memory_efficiency
