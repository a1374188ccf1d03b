"""Weight gradients that wait: a backward in two halves (Qi et al. 2024, section 2).

While `deferring`, a product with a weight hides the weight from autograd.  Its backward computes the
operand's gradient; a hook puts the rest off; `Deferred.run` computes the weights' gradients later: of
parameters one by one, added to what is there while it is in the caches, of what conversions made of
parameters all together, so that weights that were gathered together are reduced together.
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

    @property
    def late(self) -> frozenset[int] | None:
        """The parameters, by id, whose gradients are not complete yet; None: any, by conversions."""
        if any(not late.weight.is_leaf for late in self.left):
            return None
        return frozenset(id(late.weight) for late in self.left)

    def run(self, arrived: Callable[[torch.Tensor], None] | None = None) -> None:
        """Compute them, and let them flow on to the parameters.

        `arrived` hears of every parameter's, where none is made of conversions, as it is complete.
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
    """``x @ w``, or ``x @ w.T`` where the weight is transposed, as a linear layer's is.

    `place`: the weight's among the arguments.
    """

    x: torch.Tensor
    weight: torch.Tensor
    place: int
    is_transposed: bool

    def hidden(self, func: Any, args: Sequence[Any], deferred: Deferred) -> Any:
        """The product of a weight that autograd does not see; a bias is seen, its gradient does not
        wait."""
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
