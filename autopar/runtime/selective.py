"""Selective recomputation: a block's second run finds what is expensive in a cache.

The first run keeps the results of products, convolutions and attention.  Where a conversion with
`keep=True` reduces such a result, a partial sum, the reduction is kept in its place: nothing else in
the block reads the partial sum, so the second run gets a stand-in for it, and does not communicate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autopar.errors import InputError, InternalError
from autopar.ops.operators import dear_kernels
from autopar.runtime import _torch

_LIBRARY = torch.library.Library("autopar", "FRAGMENT")
_LIBRARY.define("keep_reduction(Tensor partial, Tensor reduced) -> ()")
_LIBRARY.define("kept_reduction(Tensor partial) -> Tensor[]")
_LIBRARY.impl("keep_reduction", lambda partial, reduced: None, "CompositeExplicitAutograd")
_LIBRARY.impl("kept_reduction", lambda partial: [], "CompositeExplicitAutograd")
torch.library.register_fake("autopar::keep_reduction", lambda partial, reduced: None, lib=_LIBRARY)
torch.library.register_fake("autopar::kept_reduction", lambda partial: [], lib=_LIBRARY)
# Operators, because the mode of the run that is going on sees them: no ambient state is needed.


def kept_reduction(x: torch.Tensor, reduce: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return `reduce()`, the reduction of the partial sum `x`; in a second run, from the cache."""
    found = torch.ops.autopar.kept_reduction(x)
    if found:
        return found[0]  # type: ignore[no-any-return]
    made = reduce()
    torch.ops.autopar.keep_reduction(x, made)
    return made


def is_kept(operator: Any) -> bool:
    """Return whether an operator is a product, a convolution or attention, also of a split sequence."""
    ours = torch.ops.autopar.attend_rows.default, torch.ops.autopar.ring_rows.default
    return operator in dear_kernels() or operator in ours


def selective() -> tuple[_FirstRun, _SecondRun]:
    """Return the contexts of a block's first and second run."""
    kept: deque[_Result] = deque()
    return _FirstRun(kept), _SecondRun(kept)


@dataclass(slots=True)
class _Result:
    """What an operator returned in the first run: values, or stand-ins once they were reduced."""

    operator: Any
    values: Any
    versions: tuple[int, ...]

    @classmethod
    def of(cls, operator: Any, values: Any) -> _Result:
        # Detached, for autograd would otherwise make the cache part of its graph.
        detached = _torch.tree_map_only(torch.Tensor, _torch.detached_below_autograd, values)
        return cls(operator, detached, _versions(detached))

    def shares_memory_with(self, x: torch.Tensor) -> bool:
        storage = _torch.storage_of(x)
        return any(_torch.storage_of(value) == storage for value in _tensors(self.values))

    def forget(self) -> None:
        """Put stand-ins in the place of the values: NaN, should anything read them after all."""
        self.values = _torch.tree_map_only(torch.Tensor, _stand_in, self.values)
        self.versions = _versions(self.values)

    def take(self) -> Any:
        if _versions(self.values) != self.versions:
            raise InputError(
                f"The result of {self.operator}, which selective recomputation keeps, was changed in "
                'place after it was computed. Compute a new tensor instead, or recompute="full".'
            )
        return self.values


class _FirstRun(_torch.TorchDispatchMode):
    """Keeps what is expensive, in the order in which it is computed."""

    def __init__(self, kept: deque[_Result]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = operator(*args, **(kwargs or {}))
        if is_kept(operator):
            self._kept.append(_Result.of(operator, made))
        elif operator is torch.ops.autopar.keep_reduction.default:
            partial, reduced = args
            for result in self._kept:
                if result.shares_memory_with(partial):
                    result.forget()
            self._kept.append(_Result.of(operator, reduced))
        return made


class _SecondRun(_torch.TorchDispatchMode):
    """Takes from the cache what the first run put there.

    A backward through a retained graph runs the block again.  The cache is used up then, which frees its
    memory as early as possible, and everything is computed again.
    """

    def __init__(self, kept: deque[_Result]) -> None:
        super().__init__()
        self._kept, self._runs = kept, 0

    def __enter__(self) -> Any:
        self._runs += 1
        return super().__enter__()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._runs > 1:
            return operator(*args, **(kwargs or {}))
        if operator is torch.ops.autopar.kept_reduction.default:
            return [self._next(torch.ops.autopar.keep_reduction.default)]
        if is_kept(operator):
            return self._next(operator)
        return operator(*args, **(kwargs or {}))

    def _next(self, operator: Any) -> Any:
        result = self._kept.popleft() if self._kept else None
        if result is None or result.operator is not operator:
            found = "nothing" if result is None else result.operator
            raise InternalError(
                f"The second run of a recomputed block reaches {operator}, where the first run computed "
                f'{found}. Its forward must do the same in both; use recompute="none" if it cannot.'
            )
        return result.take()


def _stand_in(value: torch.Tensor) -> torch.Tensor:
    filler = float("nan") if value.is_floating_point() or value.is_complex() else 0
    return value.new_full((), filler).expand(value.shape)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _torch.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _versions(values: Any) -> tuple[int, ...]:
    return tuple(value._version for value in _tensors(values))
