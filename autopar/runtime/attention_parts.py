"""Attention of some rows to some keys, and how results of disjoint keys are merged into one.

Each part has its log-sum-exp of scores besides its result.  The result over all keys is the mean of the
parts' results, weighted by their shares of the exponentials (Rabe and Staats 2021; Liu, Zaharia and
Abbeel 2023, ring attention).  In the backward a part needs the log-sum-exp and the result of all keys.

No function here holds scores of all rows with all keys: fused kernels compute them in tiles, and the
one in plain products in groups of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

SCORES = 2**22
"""Scores that the implementation in plain products holds at a time."""
Part = tuple[torch.Tensor, torch.Tensor]
"""Result [samples, heads, rows, width], and log-sum-exp of the scores [samples, heads, rows]."""
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_FUSED_ON_CPU = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FUSED_ON_GPU = (torch.bfloat16, torch.float16)
_WIDEST = 256
"""Widest heads of the fused kernels on GPUs."""
_aten = torch.ops.aten


@dataclass(frozen=True)
class Scores:
    """How scores are made: products times `scale`; `is_causal`: row i sees keys 0 ... i only."""

    scale: float
    is_causal: bool = False


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> Part:
    """Return the result and the log-sum-exp of rows q [b, h, s, d] with keys and values [b, a, t, d].

    Heads share keys in groups of h / a.  A causal part has as many rows as keys.
    """
    return _forward(q, k, v)(q, k, v, scores)


def attend_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Part,
    scores: Scores,
) -> Gradients:
    """Return the gradients of q, k and v that this part contributes; `merged` is of all keys."""
    return _backward(q, k, v)(gradient, q, k, v, merged, scores)


def merge(one: Part, other: Part) -> Part:
    """Return the result over the keys of both parts, in the dtype of the log-sum-exp."""
    log_sum = torch.logaddexp(one[1], other[1])
    share = (one[1] - other[1]).sigmoid()[..., None]
    made = torch.lerp(other[0].to(log_sum.dtype), one[0].to(log_sum.dtype), share)
    return made, log_sum


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Scores], Part]
Backward = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Part, Scores], Gradients
]


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
    if not _is_fused(q, k, v):
        return _in_products
    return _fused_cpu if q.device.type == "cpu" else _fused_gpu


def _backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Backward:
    if not _is_fused(q, k, v):
        return _in_products_backward
    return _fused_cpu_backward if q.device.type == "cpu" else _fused_gpu_backward


def _is_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether this device has a fused kernel for these tensors that returns the log-sum-exp."""
    width = q.shape[-1]
    if not q.dtype == k.dtype == v.dtype or v.shape[-1] != width:
        return False
    if not (q.numel() and k.numel()):
        return False  # the kernel on CPUs divides by zero, which ends the process
    if q.device.type == "cpu":
        return q.dtype in _FUSED_ON_CPU
    if q.device.type != "cuda" or q.dtype not in _FUSED_ON_GPU or width % 8 or width > _WIDEST:
        return False
    return (
        torch.backends.cuda.is_flash_attention_available()
        and torch.backends.cuda.flash_sdp_enabled()
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _fused_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> Part:
    out, log_sum = _aten._scaled_dot_product_flash_attention_for_cpu(
        *_rows(q),
        *_rows(_repeated(k, q), _repeated(v, q)),
        0.0,
        scores.is_causal,
        scale=scores.scale,
    )
    return out, log_sum


def _fused_cpu_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Part,
    scores: Scores,
) -> Gradients:
    of_q, of_k, of_v = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *_rows(gradient, q, _repeated(k, q), _repeated(v, q), merged[0]), merged[1], 0.0,
        scores.is_causal, scale=scores.scale,
    )  # fmt: skip
    return of_q, _summed(of_k, k), _summed(of_v, v)


def _fused_gpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> Part:
    out, log_sum, *_ = _aten._scaled_dot_product_flash_attention(
        *_rows(q, k, v), 0.0, scores.is_causal, False, scale=scores.scale
    )
    return out, log_sum


def _fused_gpu_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Part,
    scores: Scores,
) -> Gradients:
    # The lengths of packed sequences and the state of dropout, which there are none of.
    none = torch.empty(0, dtype=torch.int32, device=q.device)
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    made: Gradients = _aten._scaled_dot_product_flash_attention_backward(
        *_rows(gradient, q, k, v, merged[0]), merged[1].contiguous(), none, none, q.shape[2],
        k.shape[2], 0.0, scores.is_causal, state, none, scale=scores.scale,
    )  # fmt: skip
    return made


def _in_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> Part:
    wide = _wide(q)
    k, v = _repeated(k, q).to(wide), _repeated(v, q).to(wide)
    outs, sums = [], []
    for rows in _groups(q, k):
        exponents = _scores(q[:, :, rows].to(wide), k, scores, rows.start)
        log_sum = exponents.logsumexp(-1)
        outs.append(((exponents - log_sum[..., None]).exp() @ v).to(q.dtype))
        sums.append(log_sum)
    return torch.cat(outs, 2), torch.cat(sums, 2)


def _in_products_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    merged: Part,
    scores: Scores,
) -> Gradients:
    wide = _wide(q)
    keys, values = _repeated(k, q).to(wide), _repeated(v, q).to(wide)
    of_k, of_v = torch.zeros_like(keys), torch.zeros_like(values)
    parts = []
    for rows in _groups(q, k):
        mine, given = q[:, :, rows].to(wide), gradient[:, :, rows].to(wide)
        exponents = _scores(mine, keys, scores, rows.start)
        shares = (exponents - merged[1][:, :, rows, None]).exp()
        of_v += shares.mT @ given
        along = (given * merged[0][:, :, rows]).sum(-1, keepdim=True)
        of_scores = shares * (given @ values.mT - along) * scores.scale
        of_k += of_scores.mT @ mine
        parts.append((of_scores @ keys).to(q.dtype))
    return torch.cat(parts, 2), _summed(of_k, k).to(k.dtype), _summed(of_v, v).to(v.dtype)


def _scores(q: torch.Tensor, k: torch.Tensor, scores: Scores, first: int) -> torch.Tensor:
    """Return the scores of rows from `first` on, -inf where a row does not see a key."""
    made = (q * scores.scale) @ k.mT
    if not scores.is_causal:
        return made
    sees = torch.arange(first, first + q.shape[2], device=q.device)[:, None] >= torch.arange(
        k.shape[2], device=q.device
    )
    return made.masked_fill(~sees, -math.inf)


def _groups(q: torch.Tensor, k: torch.Tensor) -> Iterator[slice]:
    """Yield the rows in groups whose scores with all keys are at most `SCORES`, or single rows."""
    each = max(1, SCORES // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    for first in range(0, q.shape[2], each):
        yield slice(first, min(first + each, q.shape[2]))


def _wide(q: torch.Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _rows(*tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with the elements of a head beside each other, as fused kernels need them."""
    return (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def _repeated(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return keys or values for each head of the queries."""
    return k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def _summed(of_heads: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the gradient of keys or values, which is the sum over the heads that share them."""
    if of_heads.shape[1] == k.shape[1]:
        return of_heads
    summed: torch.Tensor = of_heads.unflatten(1, (k.shape[1], -1)).sum(2)
    return summed
