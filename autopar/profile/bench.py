"""A call as something to be run over and over: random operands in cold memory, forward and backward.

Copies of a call read different places of one large pool, so that what one copy of a large call reads is
out of the caches before its turn comes again, as a step's large tensors are.  One backward goes through
all copies: what the engine spends on starting is shared by them, as a step's operators share it.
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
"""Bytes: operands begin where allocators would put them."""


@dataclass(frozen=True)
class Bench:
    """Runs every copy of a call once."""

    copies: int
    forward: Callable[[], object]
    backward: Callable[[], object] | None


class Pool:
    """Random memory that operands are views of, one flat tensor per floating dtype."""

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
        """The next piece of the pool in a tensor's shape; it begins anew at the end."""
        flat = self._flat[tensor.dtype]
        count = math.prod(tensor.shape)
        start = self._next[tensor.dtype]
        if start + count > flat.numel():
            start = 0
        self._next[tensor.dtype] = start + _aligned(tensor.nbytes) // tensor.itemsize
        return flat[start : start + count].view(tensor.shape)


def bench(call: LocalCall, pool: Pool, nbytes: float) -> Bench:
    """A call that moves so many bytes; whatever the operator raises, it raises here."""
    copies = copies_of(nbytes, pool.device)
    function = callable_of(call.op)
    ring = [_arguments(call, pool) for _ in range(copies)]
    leaves = [tensor for _, _, own in ring for tensor in own]

    held: list[object] = []

    def forward() -> None:
        # Results stay, as they do for a step's backward: those of now go to memory that no cache holds.
        held[:] = [function(*args, **kwargs) for args, kwargs, _ in ring]

    if not (call.has_gradient and leaves):
        return Bench(copies, forward, None)
    made = [t for args, kwargs, _ in ring for t in _outputs(function(*args, **kwargs))]
    end = _End.apply([torch.ones_like(tensor) for tensor in made], *made)

    def backward() -> None:
        torch.autograd.grad(end, leaves, retain_graph=True, allow_unused=True)

    return Bench(copies, forward, backward)


class _End(torch.autograd.Function):
    """Where a backward begins: every tensor gets the gradient that it was given before."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *made: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return made[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return None, *ctx.gradients


def _outputs(made: Any) -> Iterator[torch.Tensor]:
    """The tensors that a gradient comes back to."""
    for value in made if isinstance(made, (tuple, list)) else (made,):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            yield value


def _arguments(call: LocalCall, pool: Pool) -> tuple[Any, dict[str, Any], list[torch.Tensor]]:
    """Arguments with tensors of their own, and those of them that want gradients."""
    tensors = {tensor.name: _operand(call, tensor, pool) for tensor in call.operands}
    args = bind(call.args, tensors)
    kwargs = {key: _placed(bind(value, tensors), key, pool) for key, value in call.kwargs}
    return args, kwargs, [tensor for tensor in tensors.values() if tensor.requires_grad]


def _placed(value: Any, key: str, pool: Pool) -> Any:
    """What is created anew is created on the device that is measured."""
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
    """What integers must be below: rows of a table, classes, or what fits into any dim."""
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
    """Numbers between 0.5 and 1.5: roots, logarithms and quotients of them are ordinary numbers."""
    kind = getattr(torch, dtype)
    flat = torch.empty(nbytes // kind.itemsize, dtype=kind, device=device)
    return flat.uniform_(0.5, 1.5)
