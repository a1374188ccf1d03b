"""Deferred weight gradients: a backward in two halves (Qi et al. 2024, section 2).

While `deferring`, a matrix product hides its weight from autograd.  The backward computes only the
gradient of the activation, and a hook defers the rest.  `Deferred.run` computes the weight gradients
later: those of parameters one by one, each added in place while it is in the caches; those of converted
weights all together, so that weights that were gathered together are reduced together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from autopar.runtime.regather import packed, unpacked

MOST_NODES = 64
"""Largest number of autograd nodes searched between a weight and its parameter."""


@dataclass(frozen=True, eq=False)
class Late:
    """A deferred weight gradient, ``left.T @ right``."""

    weight: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    def gradient(self) -> torch.Tensor:
        """Compute the gradient."""
        return _rows(self.left).T @ _rows(self.right)

    def add(self) -> None:
        """Add the gradient to the ``.grad`` of the weight, which is a leaf."""
        if self.weight.grad is None:
            self.weight.grad = self.gradient()
        else:
            self.weight.grad.addmm_(_rows(self.left).T, _rows(self.right))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


@dataclass(eq=False)
class Deferred:
    """The deferred weight gradients of one forward.

    `parameters`: ids of the leaves that are parameters.
    """

    parameters: frozenset[int] = frozenset()
    left: list[Late] = field(default_factory=list)

    @property
    def late(self) -> frozenset[int] | None:
        """Ids of the parameters whose gradients are incomplete; None: unknown, due to conversions."""
        if any(not late.weight.is_leaf for late in self.left):
            return None
        return frozenset(id(late.weight) for late in self.left)

    def run(self, arrived: Callable[[torch.Tensor], None] | None = None) -> None:
        """Compute the weight gradients, and backpropagate those of converted weights to parameters.

        `arrived` is called with every parameter when its gradient is complete, unless there are
        converted weights.
        """
        left, self.left = self.left, []
        converted = [late for late in left if not late.weight.is_leaf]
        last = {id(late.weight): place for place, late in enumerate(left)}
        with torch.no_grad():
            for place, late in enumerate(left):
                if late.weight.is_leaf:
                    late.add()
                    if arrived and not converted and last[id(late.weight)] == place:
                        arrived(late.weight)
            gradients = [late.gradient() for late in converted]
        if converted:
            torch.autograd.backward([late.weight for late in converted], gradients)

    def waits(self, tensor: torch.Tensor) -> bool:
        """Whether the gradient of this tensor reaches parameters only, never an activation."""
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
    """Defer the weight gradients of matrix products inside."""
    token = _CURRENT.set(deferred)
    try:
        with _Products():
            yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def at_once() -> Iterator[None]:
    """Do not defer inside: a block that is recomputed would defer its gradients twice."""
    token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _Products(TorchFunctionMode):
    """Intercepts matrix products with a weight of the model."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read = _PRODUCTS.get(func)
        if read is None or kwargs or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        deferred, product = _CURRENT.get(), read(*args)
        x, weight = product.x, product.weight
        if deferred is None or not (weight.dim() == 2 and x.dim() > 1 and x.requires_grad):
            return func(*args)
        return product.hidden(func, args, deferred) if deferred.waits(weight) else func(*args)


@dataclass(frozen=True, eq=False, slots=True)
class _Product:
    """``x @ w``, or ``x @ w.T`` if the weight is transposed, as in a linear layer.

    `place`: position of the weight among the arguments.
    """

    x: torch.Tensor
    weight: torch.Tensor
    place: int
    is_transposed: bool

    def hidden(self, func: Any, args: Sequence[Any], deferred: Deferred) -> Any:
        """Compute the product with the weight hidden from autograd; a bias is not deferred."""
        seen = list(args)
        seen[self.place] = self.weight.detach()
        made, kept = func(*seen), packed(self.x)

        def put_off(gradient: torch.Tensor) -> None:
            x = unpacked(kept)
            left, right = (gradient, x) if self.is_transposed else (x, gradient)
            deferred.left.append(Late(self.weight, left, right))

        made.register_hook(put_off)
        return made


def _linear(x: Any, weight: Any, bias: Any = None) -> _Product:
    return _Product(x, weight, 1, True)


def _addmm(bias: Any, x: Any, weight: Any) -> _Product:
    return _Product(x, weight, 2, False)


def _matmul(x: Any, weight: Any) -> _Product:
    return _Product(x, weight, 1, False)


_PRODUCTS: dict[Any, Callable[..., _Product]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
}
