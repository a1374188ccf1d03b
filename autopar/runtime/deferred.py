"""Weight gradients that wait: a backward in two halves (Qi et al. 2024, section 2).

While `deferring`, a product with a weight hides the weight from autograd.  Its backward computes the
operand's gradient and puts the rest off; `Deferred.run` computes the weights' gradients later: of
parameters one by one, added to what is there while it is in the caches, of what conversions made of
parameters all together, so that weights that were gathered together are reduced together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

MOST_NODES = 64
"""So many steps of autograd at most lie between a weight and its parameter."""


@dataclass(frozen=True, eq=False)
class Late:
    """A weight's gradient, ``left.T @ right``, that is still to be computed."""

    weight: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    def gradient(self) -> torch.Tensor:
        """The product."""
        return _rows(self.left).T @ _rows(self.right)

    def add(self) -> None:
        """To a leaf's gradient."""
        if self.weight.grad is None:
            self.weight.grad = self.gradient()
        else:
            self.weight.grad.addmm_(_rows(self.left).T, _rows(self.right))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


@dataclass(eq=False)
class Deferred:
    """The weight gradients of one forward that are still to be computed.

    `parameters`: which leaves, by id, are parameters.
    """

    parameters: frozenset[int] = frozenset()
    left: list[Late] = field(default_factory=list)

    def run(self) -> None:
        """Compute them, and let them flow on to the parameters."""
        left, self.left = self.left, []
        converted = [late for late in left if not late.weight.is_leaf]
        with torch.no_grad():
            for late in left:
                if late.weight.is_leaf:
                    late.add()
            gradients = [late.gradient() for late in converted]
        if converted:
            torch.autograd.backward([late.weight for late in converted], gradients)

    def waits(self, tensor: torch.Tensor) -> bool:
        """Whether gradients that arrive here reach parameters only, never an activation."""
        if not tensor.requires_grad or tensor.is_leaf:
            return tensor.requires_grad and id(tensor) in self.parameters
        waiting, seen = [tensor.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if len(seen) > MOST_NODES or (leaf is not None and id(leaf) not in self.parameters):
                return False
            waiting += [following for following, _ in node.next_functions]
        return True


_CURRENT: ContextVar[Deferred | None] = ContextVar("deferred", default=None)


@contextmanager
def deferring(deferred: Deferred) -> Iterator[None]:
    """Products inside put their weights' gradients off."""
    token = _CURRENT.set(deferred)
    try:
        with _Products():
            yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def at_once() -> Iterator[None]:
    """Products inside do not: a block that is recomputed would put off its gradients twice."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _Products(TorchFunctionMode):
    """Sees products with a weight of the model."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        deferred = _CURRENT.get()
        read = _PRODUCTS.get(func)
        if deferred is None or read is None or kwargs or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        x, weight, bias, is_transposed = read(*args)
        if not (weight.dim() == 2 and x.dim() > 1 and x.requires_grad and deferred.waits(weight)):
            return func(*args)
        hidden = _Hidden(weight, is_transposed, deferred)
        return _Product.apply(x, weight.detach(), bias, hidden)


class _Product(torch.autograd.Function):
    """``x @ w``, or ``x @ w.T`` where the weight is transposed, as a linear layer's is; plus a bias,
    whose gradient does not wait."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, hidden: _Hidden
    ) -> torch.Tensor:
        ctx.save_for_backward(x, values)
        ctx.hidden, ctx.bias = hidden, None if bias is None else bias.shape
        if hidden.is_transposed:
            return F.linear(x, values, bias)
        return x @ values if bias is None else torch.addmm(bias, x, values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, values = ctx.saved_tensors
        hidden: _Hidden = ctx.hidden
        hidden.put_off(x, gradient)
        of_bias = gradient.sum_to_size(ctx.bias) if ctx.needs_input_grad[2] else None
        return gradient @ (values if hidden.is_transposed else values.T), None, of_bias, None


@dataclass(frozen=True, eq=False)
class _Hidden:
    """The weight of a product, with its way to the parameter: autograd must not see it as an argument,
    or it would run that way without a gradient."""

    weight: torch.Tensor
    is_transposed: bool
    deferred: Deferred

    def put_off(self, x: torch.Tensor, gradient: torch.Tensor) -> None:
        """The weight's gradient will be computed from these."""
        left, right = (gradient, x) if self.is_transposed else (x, gradient)
        self.deferred.left.append(Late(self.weight, left, right))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return x, weight, bias, True


def _addmm(bias: Any, x: Any, weight: Any) -> Any:
    return x, weight, bias, False


def _matmul(x: Any, weight: Any) -> Any:
    return x, weight, None, False


_PRODUCTS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
}
