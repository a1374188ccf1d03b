"""Operator time by the roofline (Williams, Waterman, Patterson 2009)."""

from __future__ import annotations

import math

from cost_models.curves import DIRECTIONS, Direction, operator, share
from cost_models.errors import CostModelError
from cost_models.machine import Device
from cost_models.names import DTYPES, meant

ATTENTION = frozenset(["scaled_dot_product_attention", "biased_attention"])
"""Operators of which `dims` are those of attention."""
LEAST = 0.1
"""Minimum fraction of an operator's measured time that is attributed to its tensors, not its launch."""
ADAMW_CALLS = 5
"""Fixed cost of AdamW per parameter, in operator calls (`launch_s`): 123 us on a CPU where a call takes
25 us.  (27 calls if it steps on DTensors; the runtime steps on local tensors.)"""
TOGETHER_CALLS = 3
"""Fixed cost of AdamW per parameter with ``foreach``, one operator call for all parameters: 18 us for a
DTensor where one fused kernel takes 14."""
FUSED_CALLS = 2
"""Fixed cost of AdamW per parameter with ``fused``, one kernel for all: 1.8 calls, 2.9 on DTensors."""
GRADIENT_CALLS = 2
"""A CPU's fixed cost of a gradient besides the copy into its bucket, in operator calls: the hook, the
bucket slot, the result of the all-reduce.  15 us with the copy's call, where a call takes 6.2."""
SCATTER_CALLS = 1
"""A CPU's fixed cost of a weight's gradient that is reduce-scattered at its use, without a hook: 17 us
with the copy's call, where a call takes 10.2."""
SPLIT_CALLS = 5
"""A CPU's cost of deferring a product's weight gradient, in operator calls: all forward operators go
through a Python dispatch mode, the gradient through a hook.  46 us where a call takes 9.7."""

MESSAGE_CALLS = 15
"""A CPU's fixed cost of a message between stages, in operator calls: starting it, the backend's thread,
waiting.  130 to 170 us for a send or a receive where a call takes 10.2."""


def op_seconds(
    flops: float,
    nbytes: float,
    dtype: str,
    device: Device,
    op: str = "",
    direction: Direction = "forward",
    dims: tuple[float, ...] = (),
) -> float:
    """Return the seconds of one operator: the maximum of arithmetic and memory time, plus the launch.

    `flops` counts multiplications and additions; `nbytes` are the bytes read and written.  Arithmetic
    in a dtype that the profile lacks (integers, say) is priced as float32.  `op` is the name by which
    the device's efficiency curves are looked up; a backward moves twice the bytes of its forward.
    `dims` are those by which the efficiency of products and of attention varies (`shapes.py`): rows,
    columns and summed elements, or length and head size.  The host issues operators ahead: kernels
    longer than `issue_s` hide that time.
    Raises `CostModelError` if a number is negative, infinite or NaN, or if the dtype or the direction
    is unknown.
    """
    if direction not in DIRECTIONS:
        raise CostModelError(f"{direction!r} is not a direction; write forward or backward.")
    if not (0 <= flops < math.inf and 0 <= nbytes < math.inf):
        raise CostModelError(f"An operator cannot do {flops} operations on {nbytes} bytes.")
    peak = _peak(dtype, device)
    arithmetic = flops / (peak * _arithmetic_efficiency(op, dims, device))
    of_forward = nbytes if direction == "forward" else nbytes / 2
    reached = share(device.curves, op, dtype, direction, of_forward) if device.curves else 1.0
    seconds = max(arithmetic, _memory_seconds(nbytes, device)) / reached + device.launch_s
    if not device.issue_s:
        return seconds
    is_view = not nbytes and not dims
    return 0.0 if is_view else max(seconds, device.issue_s)


def _arithmetic_efficiency(op: str, dims: tuple[float, ...], device: Device) -> float:
    """Return the fraction of the arithmetic peak that an operator of these dims reaches."""
    shaped = device.attention if operator(op) in ATTENTION else device.products
    return shaped.of(dims) if shaped is not None and dims else device.matmul_efficiency


def reached(modelled_s: float, seconds: float, device: Device) -> float:
    """Return the fraction of the roofline that a measured time reaches.

    The launch cost is subtracted from both times; at least `LEAST` of the measured time remains.
    """
    own_s = max(seconds - device.launch_s, LEAST * seconds)
    return (modelled_s - device.launch_s) / own_s


def message_copy_seconds(nbytes: float, device: Device) -> float:
    """Return the seconds to copy `nbytes` into or out of the buffer of a collective.

    The bytes are read and written once at memory speed: what other ranks wrote is not in the cache.
    """
    _check_amount("bytes", nbytes)
    return 2.0 * nbytes / (device.bytes_per_s * device.memory_efficiency) + device.launch_s


def gradient_seconds(nbytes: float, device: Device) -> float:
    """Return the seconds to copy a gradient of `nbytes` into its bucket for the all-reduce.

    On devices that queue kernels everything but the copy itself is hidden.
    """
    calls = GRADIENT_CALLS if device.kind == "cpu" else 0
    return message_copy_seconds(nbytes, device) + calls * device.launch_s


def scattered_seconds(nbytes: float, device: Device, count: int = 1) -> float:
    """Return the seconds to copy `count` weights' gradients into one reduce-scatter of `nbytes`."""
    _check_whole("gradients", count)
    calls = 1 + SCATTER_CALLS if device.kind == "cpu" else 1
    return message_copy_seconds(nbytes, device) + (calls * count - 1) * device.launch_s


def adamw_seconds(nbytes: float, device: Device, fused: bool = False) -> float:
    """Return the seconds in which ``torch.optim.AdamW`` updates one parameter of `nbytes`.

    By default mul, lerp, mul, addcmul, sqrt, div, add and addcdiv read and write 20 tensors of the
    parameter's size: on a CPU one parameter at a time, elsewhere each operator for all parameters.
    With `fused` one kernel reads parameter, gradient and two moments, and writes three of them.
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
    """Return the overhead in seconds of deferring the weight gradients of `products` products.

    The products themselves cost the same at any time.  The Python overhead is hidden on devices that
    queue kernels: all but CPUs.
    """
    _check_whole("products", products)
    return products * SPLIT_CALLS * device.launch_s if device.kind == "cpu" else 0.0


def messages_seconds(count: int, device: Device) -> float:
    """Return a rank's own seconds for `count` sends or receives, excluding the time on the link.

    Zero on devices that queue kernels for communication: all but CPUs.
    """
    _check_whole("messages", count)
    return count * MESSAGE_CALLS * device.launch_s if device.kind == "cpu" else 0.0


def _peak(dtype: str, device: Device) -> float:
    """Return the peak operations per second in a dtype."""
    peaks = device.flops_per_s
    if dtype not in peaks and dtype not in DTYPES:
        raise CostModelError(f"{dtype!r} is not a dtype of torch. {meant(dtype, DTYPES)}")
    return peaks[dtype if dtype in peaks else "float32"]


def _check_amount(what: str, amount: float) -> None:
    if not amount >= 0:
        raise CostModelError(f"There cannot be {amount} {what}.")


def _check_whole(what: str, count: float) -> None:
    _check_amount(what, count)
    if count % 1:
        raise CostModelError(f"There cannot be {count} {what}: they are whole.")


def _memory_seconds(nbytes: float, device: Device) -> float:
    """Return the memory time: the first bytes come from the cache, the rest from memory.

    The memory rate of large tensors includes page faults.
    """
    cached = min(nbytes, device.cache_bytes)
    seconds = cached / device.cache_bytes_per_s if cached else 0.0
    return (seconds + (nbytes - cached) / device.bytes_per_s) / device.memory_efficiency
