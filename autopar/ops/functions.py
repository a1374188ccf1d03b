"""Makes a user's `torch.autograd.Function` one operator, with the backward that its author wrote.

Capture registers an operator for each distinct way in which a class is applied: which arguments are
tensors, which of them carry a gradient, and under which autocast. Running the operator applies the
class. Every rank runs the same program, so every rank registers the same names. Classes that no
import reaches (``<locals>``) are therefore found as well.

A `Function` is computed whole on every rank, unless the user states a rule for it
(``autopar.rule(Round, "b* -> b*")``) or an experiment proves one, forward and backward.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch
from torch.autograd import Function

NAMESPACE = "autopar_functions"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
METHODS = ("forward", "backward", "setup_context", "vjp", "jvp")
SCALARS = {bool: "bool", int: "int", float: "float", str: "str", torch.dtype: "ScalarType"}
BAKED = (torch.device, torch.layout, torch.memory_format, enum.Enum, type, complex)
"""Types of arguments that a schema cannot contain: their values belong to the operator."""
Autocast = tuple[str, torch.dtype, bool]


class Unfit(Exception):
    """Raised for an argument that an operator cannot have; the message says which."""


@dataclass(frozen=True)
class Argument:
    """How the operator passes one argument to the class.

    `schema` is empty if the argument's value belongs to the operator. `value` is the value at
    capture: results that are not tensors may depend on it.
    """

    schema: str
    looks: str = ""
    restore: Callable[[Any], Any] | None = None
    value: Any = None

    @property
    def text(self) -> str:
        """A text that is equal for arguments that one operator can serve."""
        return f"{self.schema}|{self.looks}|{self.restore}|{self.value!r}"


@dataclass(frozen=True)
class Applied:
    """One way of applying a class.

    `made` has for each result whether it is a tensor with a gradient (True), a tensor without
    (False), or a tuple of the result itself if it is no tensor.
    """

    cls: type
    arguments: tuple[Argument, ...]
    autocast: Autocast
    made: tuple[Any, ...]
    alone: bool
    """Whether forward returns one value, not a tuple."""

    def run(self, *operands: Any) -> Any:
        """Return the operator's results: the tensors among the results of the class."""
        given = iter(operands)
        args = [_back(argument, given) for argument in self.arguments]
        device, dtype, enabled = self.autocast
        with torch.autocast(device, dtype, enabled):
            result = apply(self.cls, *args)
        made = (result,) if self.alone else tuple(result)
        tensors = tuple(value for value in made if isinstance(value, torch.Tensor))
        return tensors[0] if len(tensors) == 1 else tensors

    def results(self, tensors: Any) -> Any:
        """Return what the user's code gets, given the operator's results."""
        given = iter([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        made = tuple(next(given) if isinstance(kind, bool) else kind[0] for kind in self.made)
        return made[0] if self.alone else made


def apply(cls: type, *args: Any) -> Any:
    """Apply the class as torch does, even if the class defines another `apply`."""
    return Function.apply.__func__(cls, *args)  # type: ignore[attr-defined]


_APPLIED: dict[str, Applied] = {}
"""By the operator's name in a graph."""
_CLASSES: dict[str, list[type]] = {}
"""By identifier of module and qualified name, which all classes that one factory makes share."""


def argument_of(value: Any) -> Argument:
    """Return how a value is passed to an operator; raise `Unfit` if it cannot be."""
    if isinstance(value, torch.Tensor):
        return Argument("Tensor", f"{value.dtype}, {value.requires_grad}")
    if value is None:
        return Argument("", value=None)
    for kind, schema in SCALARS.items():
        if type(value) is kind:
            return Argument(schema, value=value)
    if isinstance(value, BAKED):
        return Argument("", value=value)
    if isinstance(value, (tuple, list)):
        kinds = {type(item) for item in value} or {int}
        if len(kinds) == 1 and (kind := kinds.pop()) in SCALARS and kind is not torch.dtype:
            return Argument(f"{SCALARS[kind]}[]", restore=type(value), value=value)
    raise Unfit(f"an argument of type {type(value).__name__}")


def _back(argument: Argument, given: Any) -> Any:
    if not argument.schema:
        return argument.value
    value = next(given)
    if argument.schema == "ScalarType" and not isinstance(value, torch.dtype):
        raise Unfit(f"the dtype {value!r}")
    return value if argument.restore is None else argument.restore(value)


def name_of(cls: type) -> str:
    """Return the operator's name without overload: ``autopar_functions.models_quantise__Round``."""
    # Python would mangle a name with two leading underscores inside of a class.
    base = re.sub(r"\W", "_", f"{cls.__module__}__{cls.__qualname__}").strip("_")
    known = _CLASSES.setdefault(base, [])
    number = next((place for place, other in enumerate(known) if _same(cls, other)), len(known))
    if number == len(known):
        known.append(cls)
    return f"{NAMESPACE}.{base}" + (f"_{number + 1}" if number else "")


def operator_of(
    cls: type, args: Sequence[Any], autocast: Autocast, run: Callable[[], tuple[Any, bool]]
) -> tuple[Any, Applied, list[Any]]:
    """Return the operator for a call, how it applies the class, and its operands.

    `run` applies the class once to find its results, and returns whether it draws random numbers.
    """
    arguments = tuple(argument_of(value) for value in args)
    text = "\n".join([*(argument.text for argument in arguments), repr(autocast)])
    name = name_of(cls)
    overload = f"of_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    # `is_random` recognises an operator that draws random numbers by its name.
    known = next((op for op in (name, f"{name}_random") if f"{op}.{overload}" in _APPLIED), None)
    if known is None:
        result, draws = run()
        known = f"{name}_random" if draws else name
        alone = not isinstance(result, tuple)
        made = tuple(map(_kind, (result,) if alone else result))
        applied = Applied(cls, arguments, autocast, made, alone)
        _register(f"{known}.{overload}", applied)
    applied = _APPLIED[f"{known}.{overload}"]
    namespace, base = known.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    operands = [value for value, one in zip(args, arguments, strict=True) if one.schema]
    return found, applied, operands


def _kind(value: Any) -> Any:
    return value.requires_grad if isinstance(value, torch.Tensor) else (value,)


def _register(op: str, applied: Applied) -> None:
    _, base, overload = op.split(".")
    tensors = sum(isinstance(kind, bool) for kind in applied.made)
    if not tensors:
        raise Unfit("no tensor among its results")
    takes = ", ".join(
        f"{argument.schema} a{place}"
        for place, argument in enumerate(applied.arguments)
        if argument.schema
    )
    gives = "Tensor" if tensors == 1 else f"({', '.join(['Tensor'] * tensors)})"
    name = f"{base}.{overload}"
    _library.define(f"{name}({takes}) -> {gives}")
    for key in ("Autograd", "CompositeExplicitAutograd"):
        _library.impl(name, applied.run, key)
    _APPLIED[op] = applied


def applied(op: str) -> Applied | None:
    """Return how an operator of a graph applies a class, or None if it does not."""
    return _APPLIED.get(op)


def without_gradient(op: str) -> tuple[bool, ...]:
    """Return for each result of such an operator whether its class says that it carries no gradient."""
    found = _APPLIED.get(op)
    made = () if found is None else found.made
    return tuple(not kind for kind in made if isinstance(kind, bool))


def files_of(op: str) -> tuple[str, ...] | None:
    """Return the files that define the class behind an operator; None if unknown."""
    found = _APPLIED.get(op)
    if found is None:
        return None
    kinds = [kind for kind in found.cls.__mro__ if issubclass(kind, Function)]
    own = [kind for kind in kinds if kind.__module__ != Function.__module__]
    if "<locals>" in found.cls.__qualname__:
        return None
    try:
        return tuple(str(inspect.getsourcefile(kind)) for kind in own)
    except (OSError, TypeError):
        return None


def cells(cls: type) -> tuple[Any, ...]:
    """Return the closure contents of a class's methods."""
    held: tuple[CellType, ...] = ()
    for name in METHODS:
        method = getattr(cls, name, None)
        held += getattr(method, "__closure__", None) or ()
    return tuple(cell.cell_contents for cell in held)


def _same(cls: type, other: type) -> bool:
    """Return whether two classes do the same: one factory may make both from equal values."""
    if cls is other:
        return True
    if _codes(cls) != _codes(other):
        return False
    plain = (int, float, bool, str, type(None))
    mine, its = cells(cls), cells(other)
    return all(
        a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)
        for a, b in zip(mine, its, strict=True)
    )


def _codes(cls: type) -> tuple[Any, ...]:
    methods = [getattr(cls, name, None) for name in METHODS]
    return tuple((m.__code__, m.__defaults__) for m in methods if isinstance(m, FunctionType))
