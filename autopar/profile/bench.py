"""Makes a call runnable for timing: random operands in cold memory, forward and backward.

Copies of a call read different parts of one large memory pool, so that a large call's operands are
evicted from the caches before its turn comes again, as in a step.  One backward pass covers all copies,
which amortises the autograd engine's start-up as in a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from autopar.ir.graph import Tensor
from autopar.ops.operators import bind, callable_of
from autopar.rules import LocalCall
from cost_models.measured.cold import COLD_NBYTES, copies_of

ALIGNED = 256
"""Alignment of operands in bytes, as allocators align them."""


@dataclass(frozen=True)
class Bench:
    """Runs every copy of a call once."""

    copies: int
    forward: Callable[[], object]
    backward: Callable[[], object] | None


class Pool:
    """Random memory from which operands are views: one flat tensor per floating dtype."""

    def __init__(self, device: str, calls: Iterable[LocalCall]) -> None:
        self.device = device
        needed: dict[str, int] = {}
        for call in calls:
            sizes: dict[str, int] = {}
            for tensor in filter(_is_float, call.operands):
                sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + _aligned(tensor.nbytes)
            for dtype, nbytes in sizes.items():
                needed[dtype] = max(needed.get(dtype, 0), nbytes)
        self._flat = {
            dtype: _random(nbytes + COLD_NBYTES[device], dtype, device)
            for dtype, nbytes in needed.items()
        }
        self._next = dict.fromkeys(needed, 0)

    def take(self, tensor: Tensor) -> torch.Tensor:
        """Return the next piece of the pool in a tensor's shape; wraps around at the end."""
        flat = self._flat[tensor.dtype]
        count = math.prod(tensor.shape)
        start = self._next[tensor.dtype]
        if start + count > flat.numel():
            start = 0
        self._next[tensor.dtype] = start + _aligned(tensor.nbytes) // tensor.itemsize
        return flat[start : start + count].view(tensor.shape)


def bench(call: LocalCall, pool: Pool, nbytes: float) -> Bench:
    """Return the benchmark of a call that moves `nbytes`; the operator's own errors are raised here."""
    copies = copies_of(nbytes, pool.device)
    function = callable_of(call.op)
    ring = [_arguments(call, pool) for _ in range(copies)]
    leaves = [tensor for _, _, own in ring for tensor in own]

    held: list[object] = []

    def forward() -> None:
        # Results are kept, as for a step's backward, so new results go to memory that is not cached.
        held[:] = [function(*args, **kwargs) for args, kwargs, _ in ring]

    if not (call.has_gradient and leaves):
        return Bench(copies, forward, None)
    made = [t for args, kwargs, _ in ring for t in _outputs(function(*args, **kwargs))]
    end = _End.apply([torch.ones_like(tensor) for tensor in made], *made)

    def backward() -> None:
        torch.autograd.grad(end, leaves, retain_graph=True, allow_unused=True)

    return Bench(copies, forward, backward)


class _End(torch.autograd.Function):
    """Start of the backward: passes a prepared gradient to every tensor."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *made: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return made[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return None, *ctx.gradients


def _outputs(made: Any) -> Iterator[torch.Tensor]:
    """Yield the differentiable output tensors."""
    for value in made if isinstance(made, (tuple, list)) else (made,):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            yield value


def _arguments(call: LocalCall, pool: Pool) -> tuple[Any, dict[str, Any], list[torch.Tensor]]:
    """Return arguments with new tensors, and the tensors that require gradients."""
    tensors = {tensor.name: _operand(call, tensor, pool) for tensor in call.operands}
    args = bind(call.args, tensors)
    kwargs = {key: _placed(bind(value, tensors), key, pool) for key, value in call.kwargs}
    return args, kwargs, [tensor for tensor in tensors.values() if tensor.requires_grad]


def _placed(value: Any, key: str, pool: Pool) -> Any:
    """Replace a device argument by the measured device, so that new tensors are created there."""
    return torch.device(pool.device) if key == "device" and value is not None else value


def _operand(call: LocalCall, tensor: Tensor, pool: Pool) -> torch.Tensor:
    if _is_float(tensor):
        return pool.take(tensor).detach().requires_grad_(tensor.differentiable)
    dtype = getattr(torch, tensor.dtype)
    if tensor.dtype == "bool":
        return torch.rand(tensor.shape, device=pool.device) < 0.6
    if "complex" in tensor.dtype:
        return torch.randn(tensor.shape, dtype=dtype, device=pool.device)
    below = _below(call)
    return torch.randint(0, below, tensor.shape, dtype=dtype, device=pool.device)


def _below(call: LocalCall) -> int:
    """Return the exclusive limit of integer operands: rows of a table, classes, or at most two."""
    first = call.operands[0].shape if call.operands else ()
    if call.op == "aten.embedding.default":
        return first[0]
    if call.op == "autopar.cross_entropy_sum":
        return first[-1]
    sizes = [n for t in call.operands if _is_float(t) for n in t.shape]
    return min((2, *sizes))


def _is_float(tensor: Tensor) -> bool:
    return "float" in tensor.dtype


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def _random(nbytes: int, dtype: str, device: str) -> torch.Tensor:
    """Return numbers between 0.5 and 1.5, whose roots, logarithms and quotients are well-behaved."""
    kind = getattr(torch, dtype)
    flat = torch.empty(nbytes // kind.itemsize, dtype=kind, device=device)
    return flat.uniform_(0.5, 1.5)
