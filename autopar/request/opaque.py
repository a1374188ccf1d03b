"""Describes the non-tensor values of a batch as text that is equal for equal values only, on all ranks.

A captured graph contains such values as constants.  Objects are traversed, and one that holds tensors
is refused, since the tensors would become constants too.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import types
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from autopar.errors import InputError
from autopar.request import _torch
from autopar.request.nested import below, items_of

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size, slice, range, type(Ellipsis),
)  # fmt: skip
"""Types whose `repr` determines the value."""


def described(value: Any, key: str) -> str:
    """Describe a value; raise `InputError` if it holds tensors or its contents cannot be read."""
    if type(value) in PLAIN:
        return repr(value)
    return _Walk(key, type(value).__name__).words(value, key)


class _Walk:
    """Traverses one object; an object that is reached again is described by its number."""

    def __init__(self, key: str, kind: str) -> None:
        self._key, self._kind = key, kind
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def words(self, value: Any, place: str) -> str:
        if isinstance(value, torch.Tensor):
            raise self._refusal(value, place)
        if type(value) in PLAIN:
            return repr(value)
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name}"
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return _name(value)
        if id(value) in self._seen:
            return f"<{self._seen[id(value)]}>"
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # keeps temporaries alive, so that ids are not reused
        inside = ", ".join(
            f"{part}={self.words(v, at)}" for part, v, at in self._parts(value, place)
        )
        return f"{_name(type(value))}({inside})"

    def _parts(self, value: Any, place: str) -> Iterator[tuple[str, Any, str]]:
        """Yield (part, value, description of the place for messages)."""
        if isinstance(value, (set, frozenset)):
            for item in value:
                if isinstance(item, torch.Tensor):
                    raise self._refusal(item, f"an element of {place}")
            for number, item in enumerate(
                sorted(value, key=lambda each: _Walk("", "").words(each, ""))
            ):
                yield str(number), item, f"an element of {place}"
            return
        if hasattr(value, "__array__") and hasattr(value, "tobytes"):
            if str(value.dtype) == "object":
                yield "items", value.tolist(), place
            else:
                digest = hashlib.sha256(value.tobytes()).hexdigest()
                yield "array", f"{value.dtype}{list(value.shape)} {digest}", place
            return
        if isinstance(value, types.FunctionType):
            yield "code", _code(value.__code__), place
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
            yield "closure", cells, f"what {place} closes over"
            yield "defaults", [value.__defaults__, value.__kwdefaults__], f"defaults of {place}"
            return
        if isinstance(value, types.MethodType):
            yield "of", value.__self__, f"{place}.__self__"
            yield "function", value.__func__, place
            return
        if isinstance(value, functools.partial):
            yield "of", value.func, f"{place}.func"
            yield "args", [value.args, value.keywords], f"arguments of {place}"
            return
        yield from self._attributes(value, place)

    def _attributes(self, value: Any, place: str) -> Iterator[tuple[str, Any, str]]:
        items = items_of(value)
        for part, item in items or ():
            if isinstance(part, torch.Tensor):
                raise self._refusal(part, f"a key of {place}")
            yield self.words(part, f"a key of {place}"), item, f"{place}[{part!r}]"
        stored = dict(getattr(value, "__dict__", None) or {})
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                name = f"_{kind.__name__.lstrip('_')}{slot}" if _is_mangled(slot) else slot
                if slot not in ("__dict__", "__weakref__") and hasattr(value, name):
                    stored[name] = getattr(value, name)
        for name, item in stored.items():
            yield str(name), item, f"{place}.{name}"
        own = "__reduce__" in _defined(value)
        if items is None and (not stored or own or not _is_of_python(type(value))):
            yield from self._reduced(value, place)

    def _reduced(self, value: Any, place: str) -> Iterator[tuple[str, Any, str]]:
        """Yield what an object without readable attributes would pickle."""
        plain = "__reduce_ex__" not in _defined(value)
        if plain and "__reduce__" not in _defined(value) and _is_of_python(type(value)):
            return
        try:
            made = value.__reduce_ex__(2)
        except Exception as error:
            raise InputError(
                f"{self._key!r} holds a {type(value).__name__} ({place}), whose contents cannot "
                f"be compared ({error}), so a step could not detect a change. Pass tensors, "
                "numbers or strings instead, or keep it in the model."
            ) from None
        parts = made[1:3] if isinstance(made, tuple) else (made,)
        yield "is", list(parts), place

    def _refusal(self, tensor: torch.Tensor, place: str) -> InputError:
        if self._kind in ("set", "frozenset", "Tensor"):
            raise InputError(
                f"{self._key!r}: {place} is a tensor. Sets have no order and keys are not "
                "inputs: pass tensors in a list, or as the values of a dict."
            )
        what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        return InputError(
            f"{self._key!r} is a {self._kind}, which holds a tensor ({place}: {what}) and which "
            "autopar cannot open as a container, so its tensors would stay those of the first "
            "batch. Pass its tensors by name, as a dict or a dataclass; or register how to open "
            f"{self._kind}: torch.utils._pytree.register_pytree_node({self._kind}, lambda b: "
            f"([b.x], None), lambda tensors, _: {self._kind}(*tensors))."
        )


def _name(of: Any) -> str:
    return f"{getattr(of, '__module__', '')}.{getattr(of, '__qualname__', getattr(of, '__name__', ''))}"


def _code(code: types.CodeType) -> str:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    text = f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"
    return hashlib.sha256(text.encode()).hexdigest()


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _defined(value: Any) -> set[str]:
    """Return the names that a value's classes define, without those of `object`."""
    return {name for kind in type(value).__mro__ if kind is not object for name in vars(kind)}


def _is_mangled(slot: str) -> bool:
    return slot.startswith("__") and not slot.endswith("__")


def _is_of_python(kind: type) -> bool:
    """Whether all base classes are written in Python, so that no state is hidden in C."""
    return all(base is object or base.__flags__ & (1 << 9) for base in kind.__mro__)


def shapes_of(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield (key, description) for containers that are not dict, list or tuple, and for empty ones.

    The description has the type and what the container holds besides its items.  Raises `InputError`
    for a tensor that is a key or would become a constant.
    """
    if isinstance(value, torch.Tensor) or (items := items_of(value)) is None:
        return
    kind = type(value)
    if kind not in (dict, list, tuple):
        yield f"type of {key}", f"{_name(kind)} {_besides(value, key)}"
    for part, item in items:
        if type(part) not in PLAIN:
            described(part, f"a key of {key}")
        yield from shapes_of(item, below(key, part))
    if not items:
        yield f"length of {key}", "0"


def _besides(value: Any, key: str) -> str:
    """Describe what a container holds besides its items."""
    if _torch.opened(value) is not None and not isinstance(value, (Mapping, tuple, list)):
        return described(_torch.context_of(value), key)
    own = (
        {name for name, _ in items_of(value) or ()} if not isinstance(value, UserDict) else {"data"}
    )
    kept = {n: v for n, v in getattr(value, "__dict__", {}).items() if n not in own and n != "data"}
    return described(kept, key) if kept else ""
