"""Tracks values that follow from shapes alone, which Python may read in a trace as in a real run.

For example, a model may test whether its position ids are consecutive before it builds a mask. They
come from ``arange``: no input, weight or buffer affects them, so the result is the same in every
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture.spread import computed
from autopar.request.meta import LARGEST as LARGEST_TOLD
from autopar.request.meta import VALUES, tells_sizes

LARGEST = 1 << 24
"""Maximum number of elements in memory of a tensor whose values are tracked."""
UNWRITTEN = ("empty", "new_empty")
"""Operators whose result has no values yet."""


class KnownValues(_torch.FakeTensorMode):
    """A fake mode in which small tensors that depend only on shapes carry their values."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator on shapes, and on values if the values of all operands are known."""
        kwargs = kwargs or {}
        fakes = list(_fakes((*args, *kwargs.values())))
        constants = [fake.constant for fake in fakes]
        if all(constant is None or constant.numel() == 1 for constant in constants) and fakes:
            result = super().dispatch(func, types, args, kwargs)
            self._suppose(func, args, kwargs, fakes, result)
            return result
        # Hide the constants: torch would compute on them whatever the size of the result.
        for fake in fakes:
            fake.constant = None
        try:
            result = super().dispatch(func, types, args, kwargs)
        finally:
            for fake, constant in zip(fakes, constants, strict=True):
                fake.constant = constant
        if _torch.writes_to(func):
            self._forget(constants)
        elif _follows(func, constants, result):
            self._remember(func, args, kwargs, result)
        else:
            self._suppose(func, args, kwargs, fakes, result)
        return result

    def _suppose(self, func: Any, args: Any, kwargs: Any, fakes: list[Any], result: Any) -> None:
        """Compute a result's values from the present values of buffers."""
        if not any(hasattr(fake, VALUES) for fake in fakes):
            return
        if _torch.writes_to(func):
            for fake in fakes:
                vars(fake).pop(VALUES, None)
        elif _follows(func, [likely(fake) for fake in fakes], result):
            made = [leaf for leaf in _torch.tree_leaves(result) if _torch.is_fake(leaf)]
            given = _torch.tree_map(_likely_leaf, (list(args), dict(kwargs)))
            with _torch.unfaked():
                shapes = [tuple(fake.shape) for fake in made]
                values = computed(func, given[0], given[1], shapes, LARGEST_TOLD)
            for fake, value in zip(made, _torch.tree_leaves(values), strict=False):
                suppose(fake, value)

    def _forget(self, constants: list[torch.Tensor | None]) -> None:
        for constant in constants:
            if constant is not None:
                self.fake_tensor_converter.invalidate_constant_aliases(constant)

    def _remember(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = [leaf for leaf in _torch.tree_flatten(result)[0] if _torch.is_fake(leaf)]
        with _torch.unfaked():
            shapes = [tuple(fake.shape) for fake in made]
            values = computed(func, _values(args), _values(kwargs), shapes, LARGEST)
        if values is None or any(map(_torch.is_wrapped, _torch.tree_leaves(values))):
            return
        leaves = (_torch.tree_flatten(side)[0] for side in (result, values))
        for fake, value in zip(*leaves, strict=True):
            if _torch.is_fake(fake):
                fake.constant = value
                self.fake_tensor_converter.add_constant_storage_mapping(fake)


def _fakes(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the traced tensors among arguments, which are nested in lists and tuples only."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _fakes(value)
        elif _torch.is_fake(value):
            yield value


def _follows(func: Any, constants: list[torch.Tensor | None], result: Any) -> bool:
    """Return whether the values of a result follow from known values."""
    made = [leaf for leaf in _torch.tree_flatten(result)[0] if _torch.is_fake(leaf)]
    return (
        bool(made)
        and all(constant is not None for constant in constants)
        and torch.Tag.nondeterministic_seeded not in func.tags
        and not _torch.operator_name(func).startswith(UNWRITTEN)
        and all(fake.device.type == "cpu" and not fake.requires_grad for fake in made)
    )


def _values(tree: Any) -> Any:
    return _torch.tree_map(lambda leaf: leaf.constant if _torch.is_fake(leaf) else leaf, tree)


def likely(tensor: object) -> torch.Tensor | None:
    """Return values by which a size may be determined: known ones, or those of buffers now.

    The step checks a size that comes from a buffer.
    """
    known = _torch.known_value(tensor)
    return getattr(tensor, VALUES, None) if known is None else known


def suppose(tensor: torch.Tensor, values: Any) -> None:
    """Set the values that `likely` returns, if the tensor may determine a size."""
    if isinstance(values, torch.Tensor) and not values.is_meta and tells_sizes(values):
        setattr(tensor, VALUES, values)


def _likely_leaf(leaf: Any) -> Any:
    return likely(leaf) if _torch.is_fake(leaf) else leaf
