"""Prepares experiments: runs one operator call on small whole tensors, as a reference for shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from autopar.errors import RuleError
from autopar.ir.graph import Graph, Node, Tensor, is_random
from autopar.ops.operators import bind, callable_of
from autopar.rules import _torch
from autopar.rules.discover.sizes import Shapes
from autopar.rules.local import Local
from autopar.rules.prove import Reference, reference, wide

FLOATS = ("float16", "bfloat16", "float32", "float64")
DOMAINS = ("any", "positive", "between zero and one")
"""Ranges of float operands, tried in this order until all results are finite."""
DRAWS = (0, 1)
"""Seeds for the first set of small shapes; other sets use only the last one."""
LABELS = ((-1, 1), (0, 1))
"""Values of operands without gradient, tried in addition: an operator may test for them (y == 1)."""
LEAST_INDEX = 2
"""Indices of the first draw are below this number, which is within any dim, split or not."""


class Declined(Exception):
    """No experiment is possible; the message is the reason."""


@dataclass(frozen=True)
class Bench:
    """The call on one set of small shapes, with references for several draws."""

    graph: Graph
    node: Node
    operands: tuple[Tensor, ...]
    wholes: tuple[Reference, ...]

    @property
    def shapes(self) -> Shapes:
        """Shapes of the operands."""
        return tuple(tensor.shape for tensor in self.operands)


def refuse(node: Node, operands: tuple[Tensor, ...]) -> None:
    """Raise `Declined` for a call on which experiments prove nothing."""
    function = callable_of(node.op)
    if not operands:
        raise Declined("it reads no tensor")
    if is_random(node):
        raise Declined("it draws random numbers")
    if _torch.writes(function):
        raise Declined(f"it changes its argument {', '.join(_torch.writes(function))}")
    if _torch.depends_on_values(function, any(t.dtype == "bool" for t in operands)):
        raise Declined("the shape of its result depends on values")
    odd = [t.dtype for t in (*operands, *node.outputs) if "complex" in t.dtype]
    if odd:
        raise Declined(f"it works on {odd[0]}")


def bench(
    node: Node, operands: tuple[Tensor, ...], shapes: Shapes, draws: tuple[int, ...] = DRAWS
) -> Bench:
    """Return the call on these shapes; raise `Declined` if it does not run, or is not deterministic."""
    small = {
        t.name: replace(t, shape=s, dtype=_wide(t)) for t, s in zip(operands, shapes, strict=True)
    }
    leaves = [Node(t.name, "input", outputs=(t,), target=t.name) for t in small.values()]
    tensors = tuple(small[tensor.name] for tensor in operands)
    with sheltered():
        errors: list[str] = []
        for domain in DOMAINS:
            try:
                probe = _probed(node, tensors, domain)
                graph = Graph("experiment", (*leaves, probe), None)
                wholes = [_whole(graph, probe, tensors, domain, draw) for draw in draws]
            except Declined as reason:
                errors.append(str(reason))
                continue
            wholes += _labelled(graph, probe, tensors, domain)
            if not any(bool(made.any()) for whole in wholes for made in whole.outputs):
                raise Declined("its result for random numbers is all zero, like any part of it")
            return Bench(graph, probe, tensors, tuple(wholes))
    raise Declined(errors[0])


@contextlib.contextmanager
def sheltered() -> Iterator[None]:
    """Run the body on the CPU with gradients enabled, and restore the user's random state."""
    default = torch.get_default_device()
    elsewhere = torch.device("cpu") if default.type != "cpu" else contextlib.nullcontext()
    with torch.random.fork_rng(devices=[]), elsewhere, torch.enable_grad():
        yield


def accepts(node: Node, arguments: Local, operands: tuple[Tensor, ...], shapes: Shapes) -> bool:
    """Return whether an operator may be run on such shapes, since some kernels crash on wrong ones.

    The check uses meta tensors.  Operators without a meta implementation and operators in Python are
    accepted unchecked.
    """
    if _torch.is_python(node.op):
        return True
    with torch.no_grad():
        made = [
            torch.empty(shape, dtype=getattr(torch, tensor.dtype), device="meta")
            for tensor, shape in zip(operands, shapes, strict=True)
        ]
        given = iter(made)
        try:
            args = [bind(wide(arg), lambda _: next(given)) for arg in arguments[0]]
            kwargs = {k: bind(wide(arg), lambda _: next(given)) for k, arg in arguments[1]}
            callable_of(node.op)(*args, **kwargs)
        except NotImplementedError:
            return True
        except Exception:
            return False
    return True


def _wide(tensor: Tensor) -> str:
    return "float64" if tensor.dtype in FLOATS else tensor.dtype


def _probed(node: Node, operands: tuple[Tensor, ...], domain: str) -> Node:
    """Return the node with its output shapes on these operands, from a first run.

    Raises `Declined` if the run fails, draws random numbers, changes an operand, or has other outputs.
    """
    generator = torch.Generator().manual_seed(0)
    values = draw(operands, domain, LEAST_INDEX, generator)
    given = {t.name: v.clone() for t, v in zip(operands, values, strict=True)}
    before = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            function = callable_of(node.op)
            args = bind(wide(node.args), given)
            made = function(*args, **{k: bind(wide(v), given) for k, v in node.kwargs})
    except RuleError:
        raise
    except Exception as error:
        raise Declined(f"it does not run in float64 on the CPU: {_error_text(error)}") from None
    if not torch.equal(before, torch.random.get_rng_state()):
        raise Declined("it draws random numbers")
    for tensor, value in zip(operands, values, strict=True):
        if not torch.equal(given[tensor.name], value):
            raise Declined("it changes an operand in place")
    outputs = made if isinstance(made, (tuple, list)) else (made,)
    if len(outputs) != len(node.outputs) or not all(isinstance(o, torch.Tensor) for o in outputs):
        raise Declined("it returns something other than tensors")
    found = []
    for want, value in zip(node.outputs, outputs, strict=True):
        shape = tuple(value.shape)
        alike = [(a == 1) == (b == 1) for a, b in zip(shape, want.shape, strict=False)]
        if len(shape) != len(want.shape) or not all(alike):
            raise Declined("on small shapes its result has another form")
        found.append(replace(want, shape=shape, dtype=str(value.dtype).removeprefix("torch.")))
    return replace(node, outputs=tuple(found))


def _labelled(
    graph: Graph, node: Node, operands: tuple[Tensor, ...], domain: str
) -> list[Reference]:
    """Return draws with operands without gradient from `LABELS`, as far as the operator accepts them."""
    flowing = [tensor for tensor in operands if tensor.differentiable]
    if not flowing or len(flowing) == len(operands):
        return []
    found = []
    for number, values in enumerate(LABELS):
        with contextlib.suppress(Declined):
            found.append(_whole(graph, node, operands, domain, number, values))
    return found


def _whole(
    graph: Graph,
    node: Node,
    operands: tuple[Tensor, ...],
    domain: str,
    number: int,
    labels: tuple[int, ...] = (),
) -> Reference:
    """Return the reference for one draw; raise `Declined` unless two runs are equal and finite."""
    highest = (
        LEAST_INDEX
        if not number
        else min((n for t in operands for n in t.shape if n > 1), default=2)
    )
    for high in dict.fromkeys((highest, LEAST_INDEX)):
        runs = []
        try:
            for _ in range(2):
                generator = torch.Generator().manual_seed(number)
                values = draw(operands, domain, high, generator, labels)
                runs.append(reference(graph, node, values, generator))
        except Exception as error:
            if high != LEAST_INDEX:
                continue
            raise Declined(f"it does not run in float64 on the CPU: {_error_text(error)}") from None
        first, second = ([*run.outputs, *run.gradients] for run in runs)
        for a, b in zip(first, second, strict=True):
            if a is None or b is None:
                continue
            if a.is_floating_point() and not bool(a.isfinite().all()):
                raise Declined("its result for random numbers is not finite")
            if not torch.equal(a, b):
                raise Declined("it gives different results for equal operands")
        return runs[0]
    raise Declined("it does not accept indices")


def draw(
    operands: tuple[Tensor, ...],
    domain: str,
    highest: int,
    generator: torch.Generator,
    labels: tuple[int, ...] = (),
) -> list[torch.Tensor]:
    """Return random operands; a tensor that is read twice has one value.

    `labels`: the values of operands without gradient.
    """
    drawn: dict[str, torch.Tensor] = {}
    for tensor in operands:
        value = _one(tensor, domain, highest, generator)
        if labels and not tensor.differentiable and tensor.dtype != "bool":
            places = torch.randint(0, len(labels), tensor.shape, generator=generator)
            value = torch.tensor(labels, dtype=value.dtype)[places]
        drawn.setdefault(tensor.name, value)
    return [drawn[tensor.name] for tensor in operands]


def _one(tensor: Tensor, domain: str, highest: int, generator: torch.Generator) -> torch.Tensor:
    if tensor.dtype == "bool":
        return torch.rand(tensor.shape, generator=generator) < 0.6
    if tensor.dtype not in FLOATS:
        dtype = getattr(torch, tensor.dtype)
        # Domains other than "any" are for operators whose results at zero are not finite.
        low = 0 if domain == "any" else 1
        return torch.randint(low, low + highest, tensor.shape, generator=generator, dtype=dtype)
    if domain == "any":
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    value = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return value + 0.5 if domain == "positive" else value * 0.9 + 0.05


def _error_text(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]
