"""Records an operator without running it if it already ran on tensors with the same properties.

Torch needs about two milliseconds for each operator of a trace, and a deep model repeats the same
few hundred. The result is determined by properties of the operands: shapes, strides, dtypes, which
operand's memory a result shares, whether it carries a gradient. The user's Python code still runs,
so layers are not assumed to be equal.

A result that is made in this way has no autograd history. The graph does not need it, but a write
in place does, and a model may read it. Then the trace starts again without this cache
(`Forgotten`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture.known import likely
from autopar.capture.where import Watcher

LITERALS = frozenset(
    {
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
REFUSED_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
LIFTS = ("lift", "lift_fresh", "is_nonzero")
"""Operators that traces treat specially."""


class Forgotten(BaseException):
    """Raised if the model needs autograd history; no `except Exception` of the model may catch it."""


class _Unlike(Exception):
    """Raised for an argument that its properties do not fully describe."""


@dataclass(frozen=True)
class _Made:
    """One tensor of a result. `of`: the operand that it is, or whose memory it shares."""

    of: int | None
    is_operand: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    gradient: bool


@dataclass(frozen=True)
class _Result:
    """An operator's result: one tensor, or a list or tuple of tensors."""

    kind: type | None
    made: tuple[_Made, ...]


class Remembered:
    """Returns the results of the operators of one trace."""

    def __init__(self) -> None:
        self._results: dict[Hashable, _Result | None] = {}
        self._storages: set[int] = set()

    def answering(self) -> AbstractContextManager[None]:
        """Within the context, a trace gets the results of operators from this object."""
        return _torch.operators_answered(self._answer)

    def _answer(
        self,
        tracer: _torch.Tracer,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: _torch.Run,
    ) -> Any:
        """Return the operator's result, recorded in the trace."""
        if _torch.is_mutable(func):
            self._refuse_to_write(func, args, kwargs)
            return run()
        operands: list[Any] = []
        try:
            key = (
                func,
                _state(),
                _signature(args, operands),
                _signature(tuple(kwargs.items()), operands),
            )
        except _Unlike:
            return run()
        if key not in self._results:
            result = run()
            self._results[key] = None if _is_special(func) else _seen(result, operands)
            return result
        known = self._results[key]
        nodes = {id(operand): _torch.node_of(tracer, operand) for operand in operands}
        if known is None or None in nodes.values():
            return run()
        made = [self._again(one, operands) for one in known.made]
        result = made[0] if known.kind is None else known.kind(made)
        arguments = _with_nodes(args, nodes), _with_nodes(kwargs, nodes)
        _torch.record(tracer, func, arguments, result, _torch.plain_name(func))
        return result

    def watchers(self) -> Mapping[Any, Watcher]:
        """Return watchers for accessors of a tensor's autograd history."""

        def asked(args: tuple[Any, ...], frame: FrameType | None) -> None:
            self._refuse_history(args)

        return dict.fromkeys(_torch.HISTORY, asked)

    def _again(self, made: _Made, operands: Sequence[Any]) -> torch.Tensor:
        like = operands[made.of or 0]
        if made.is_operand:
            return like  # type: ignore[no-any-return]
        tensor = _torch.fake_of(
            like, made.shape, made.stride, made.offset, made.dtype, made.device,
            shares=made.of is not None, gradient=made.gradient,
        )  # fmt: skip
        self._storages.add(_torch.storage_id(tensor))
        return tensor

    def _refuse_to_write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for position, name in _torch.writes_to(func):
            self._refuse_history((args[position] if position < len(args) else kwargs.get(name),))

    def _refuse_history(self, values: Any) -> None:
        for value in _torch.tree_leaves(values):
            if _torch.is_fake(value) and _torch.storage_id(value) in self._storages:
                raise Forgotten


def _is_special(func: Any) -> bool:
    return bool(REFUSED_TAGS.intersection(func.tags)) or _torch.operator_name(func) in LIFTS


def _state() -> Hashable:
    """Return the global state that affects results."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")),
    )


def _signature(value: Any, operands: list[Any]) -> Hashable:
    """Return a key that is equal for arguments which an operator cannot distinguish.

    The tensors are appended to `operands` in order.
    """
    kind = type(value)
    if kind in LITERALS:
        return kind, value
    if kind is tuple or kind is list:
        return kind, tuple(_signature(item, operands) for item in value)
    if not _is_plain(value):
        raise _Unlike
    operands.append(value)
    return (
        value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device,
        value.requires_grad, next(at for at, operand in enumerate(operands) if operand is value),
    )  # fmt: skip


def _is_plain(value: Any) -> bool:
    """Return whether properties describe a tensor fully: its values are unknown, and it is strided."""
    return (
        _torch.is_fake(value)
        and likely(value) is None
        and value.layout is torch.strided
        and not value.dtype.is_complex
        and not value.is_inference()
    )


def _seen(result: Any, operands: Sequence[Any]) -> _Result | None:
    """Return how to make such a result again, or None if that is not known."""
    kind = type(result) if type(result) in (list, tuple) else None
    tensors = [result] if kind is None else list(result)
    if not operands or not tensors or not all(_is_plain(tensor) for tensor in tensors):
        return None
    memory = {_torch.storage_id(operand): at for at, operand in reversed([*enumerate(operands)])}
    made = tuple(_one(tensor, operands, memory) for tensor in tensors)
    own = [_torch.storage_id(t) for t, one in zip(tensors, made, strict=True) if one.of is None]
    fit = all(one.offset == 0 or one.of is not None for one in made)
    alike = all(one.of is None or one.dtype == operands[one.of].dtype for one in made)
    return _Result(kind, made) if fit and alike and len(own) == len(set(own)) else None


def _one(tensor: Any, operands: Sequence[Any], memory: Mapping[int, int]) -> _Made:
    same = next((at for at, operand in enumerate(operands) if operand is tensor), None)
    of = memory.get(_torch.storage_id(tensor)) if same is None else same
    return _Made(
        of, same is not None, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(),
        tensor.dtype, tensor.fake_device, tensor.requires_grad,
    )  # fmt: skip


def _with_nodes(value: Any, nodes: Mapping[int, Any]) -> Any:
    """Return the arguments with nodes instead of tensors."""
    if isinstance(value, tuple | list):
        return type(value)(_with_nodes(item, nodes) for item in value)
    if isinstance(value, dict):
        return {key: _with_nodes(item, nodes) for key, item in value.items()}
    return nodes.get(id(value), value)
