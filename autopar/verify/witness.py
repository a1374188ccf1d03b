"""Independent type check of a plan: `spmd_types` derives the type of every emitted statement's result.

Each statement runs on empty local tensors with the types that its operands have in the plan, in a fake
process group.  The types that the checker derives by its own rules are compared with the plan's.  The
checker cannot express strided shards, lacks our local implementations and a few operators, and treats
fewer operators as linear.  In these cases it gives no verdict (silent); such statements are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autopar import runtime
from autopar.emit.program import program
from autopar.emit.statement import Part, Statement, Value, Weight
from autopar.errors import MeshError
from autopar.ir.collectives import COLLECTIVES
from autopar.ir.graph import Graph, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import P, S, Sharding, Type
from autopar.plans.plan import Plan
from autopar.rules import localize
from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.verify import spmd

LACKS_RULE = "No valid sharding strategy", "is not supported"
"""Error messages of the checker for an unknown operator or an unknown way to call one."""
_CALL = re.compile(r"((?:torch\.(?:ops\.\w+\.\w+\.)?|F\.)?[A-Za-z_]\w*)\(")


class Silent(Exception):
    """The checker cannot give a verdict on a statement."""


@dataclass(frozen=True)
class Verdict:
    """The checker's verdict on one emitted statement, with the reason if it does not agree."""

    statement: str
    kind: Literal["agrees", "silent", "contradicts"]
    words: str = ""


def witness(plan: Plan, graph: Graph) -> tuple[Verdict, ...]:
    """Derive the types of all statements of a plan's emitted code with `spmd_types`.

    Raises `MeshError` inside a process group, because it creates its own.
    """
    return weigh(program(plan, graph, localize, {}), plan, graph)


def weigh(statements: Iterable[Statement], plan: Plan, graph: Graph) -> tuple[Verdict, ...]:
    """Check given statements as `witness` does; equal ones are checked once."""
    said: dict[object, Verdict] = {}
    verdicts = []
    with _world(plan.mesh) as devices:
        checker = _Checker(plan, graph, devices)
        for statement in statements:
            key = checker.key(statement)
            if key not in said:
                said[key] = checker.verdict(statement)
            verdicts.append(said[key])
    return tuple(verdicts)


@contextmanager
def _world(mesh: Mesh) -> Iterator[DeviceMesh]:
    if torch.distributed.is_initialized():
        raise MeshError("A plan is type-checked in a process of its own, not under torchrun.")
    with _torch.fake_world(mesh.world_size):
        devices = init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)
        yield devices


class _Checker:
    def __init__(self, plan: Plan, graph: Graph, devices: DeviceMesh) -> None:
        self._graph, self._mesh, self._devices = graph, plan.mesh, devices
        self._names = _names()
        self._module = SimpleNamespace(mesh=Axes.of(devices), device=torch.device("cpu"))
        self._weights = {
            Weight(node.target): Value(node.outputs[0].name, plan.choice[node.name].outputs[0])
            for kind in ("parameter", "buffer")
            for node in graph.leaves(kind)
        }

    def key(self, statement: Statement) -> object:
        """Return a key that is equal for statements that differ only in tensor names."""
        operands = self._operands(statement.parts)
        signatures = tuple(self._signature(value) for value in (*operands, *statement.targets))
        return _text(statement.parts), signatures

    def verdict(self, statement: Statement) -> Verdict:
        """Run one statement under the checker."""
        text = f"{', '.join(value.tensor for value in statement.targets)} = "
        text += "".join(
            part if isinstance(part, str) else _spelled(part) for part in statement.parts
        )
        try:
            difference = self._difference(statement)
        except Silent as reason:
            return Verdict(text, "silent", str(reason))
        return Verdict(text, "contradicts" if difference else "agrees", difference or "")

    def _difference(self, statement: Statement) -> str | None:
        operands = self._operands(statement.parts)
        if not operands:
            raise Silent("makes its result from nothing")
        if "axis=" in _text(statement.parts):
            raise Silent("a local implementation")
        here = {f"v{i}": self._declared(value) for i, value in enumerate(operands)}
        wanted = [spmd.derived(self._declared(value)) for value in statement.targets]
        try:
            with torch.enable_grad(), spmd.checking():
                made = eval(_text(statement.parts), {**self._names, **here, "self": self._module})
        except spmd.REFUSED as refusal:
            if any(P in tuple(value.form) for value in operands):
                raise Silent(f"a partial operand of {_called(statement)}") from None
            return _weighed(refusal, statement)
        except AssertionError:
            raise Silent(f"fails on {_called(statement)}") from None
        results: Sequence[Any] = made if isinstance(made, (tuple, list)) else [made]
        for result, want, value in zip(results, wanted, statement.targets, strict=True):
            got = spmd.derived(result)
            if got != want:
                return f"{value.tensor} is {value.form} in the plan, but derived as {got}"
        return None

    def _operands(self, parts: tuple[Part, ...]) -> tuple[Value, ...]:
        found = (
            part if isinstance(part, Value) else self._weights[part]
            for part in parts
            if not isinstance(part, str)
        )
        return tuple(found)

    def _signature(self, value: Value) -> object:
        tensor = self._graph.tensors[value.tensor]
        return tensor.shape, tensor.dtype, tensor.differentiable, value.form

    def _declared(self, value: Value) -> torch.Tensor:
        """Return an empty local tensor, declared to the checker with the value's sharding."""
        tensor = self._graph.tensors[value.tensor]
        types = dict(self._types(tensor, value.form))
        shape = value.form.local_shape(tensor.shape, self._mesh)
        x = torch.empty(shape, dtype=getattr(torch, tensor.dtype), device="meta")
        x = x.requires_grad_() if tensor.differentiable else x
        return spmd.declare(x, types, self._devices)

    def _types(self, tensor: Tensor, form: Sharding) -> Iterator[tuple[str, Type]]:
        """Yield the type on each axis; of axes that split the same dim the outer one comes first."""
        mesh = self._mesh
        axes = [axis for axis in range(len(mesh)) if mesh.sizes[axis] > 1]
        for dim in range(len(tensor.shape)):
            cuts = [(of, axis) for of, axis in form.cuts(dim) if axis in axes]
            sizes = [mesh.sizes[axis] for _, axis in cuts]
            if any(of != math.prod(sizes[:place]) for place, (of, _) in enumerate(cuts)):
                raise Silent("a strided shard")
            yield from ((mesh.names[axis], S(dim)) for _, axis in cuts)
        yield from ((mesh.names[a], form[a]) for a in axes if not isinstance(form[a], S))


def _names() -> dict[str, object]:
    """Return what emitted code imports, with conversions that the checker follows."""
    return {
        "torch": torch,
        "F": F,
        **{name: getattr(runtime, name) for name in runtime.__all__},
        **dict.fromkeys(COLLECTIVES, spmd.convert),
        **dict.fromkeys(("all_gather_together", "replicate_together"), spmd.convert_together),
    }


def _text(parts: tuple[Part, ...]) -> str:
    """Return the statement's expression with numbered operands: ``torch.addmm(v0, v1, v2)``."""
    text, count = "", 0
    for part in parts:
        text += part if isinstance(part, str) else f"v{count}"
        count += not isinstance(part, str)
    return text


def _spelled(part: Value | Weight) -> str:
    return f"self.{part.path}" if isinstance(part, Weight) else part.tensor


def _called(statement: Statement) -> str:
    """Return the function that a statement calls: ``F.linear`` or ``unflatten``."""
    text = _text(statement.parts)
    found = _CALL.search(text)
    return found[1] if found else text


def _weighed(refusal: Exception, statement: Statement) -> str:
    """Return a refusal's message, which contradicts the plan; raise `Silent` if a rule is missing."""
    words = str(refusal).splitlines()[0]
    if any(said in words for said in LACKS_RULE):
        raise Silent(f"no rule for {_called(statement)}")
    return words
