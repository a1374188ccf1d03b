"""The bytes of message buffers that plans count are those that the kernels allocate."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, S, Sharding, Type, dual
from autopar.memory.messages import _Messages
from autopar.plans.decisions import Conversion
from autopar.runtime._torch import fake_world
from autopar.runtime.axes import Axis
from autopar.runtime.convert import step
from tests.live import LiveBytes

SHAPE = (8, 4, 8)
TYPES: tuple[Type, ...] = (R, I, P, S(0), S(1), S(2), S(0, of=2), S(0, of=4), S(2, of=2))
PAIRS = [
    (source, target)
    for source, target in itertools.permutations(TYPES, 2)
    if not (source in (R, I) and target in (R, I))
    and target is not P
    and (source, target) != (P, R)
]


def _buffers(x: torch.Tensor, axis: Axis, source: Type, target: Type) -> int:
    """The most bytes that a conversion has in use besides its operand and its result."""
    with LiveBytes() as live:
        live.count([x])
        made = step(x, axis, source, target)
    return (
        max(live.most, x.nbytes) - x.nbytes - (0 if made is x else made.untyped_storage().nbytes())
    )


def _operand(kind: Type, turned: bool) -> torch.Tensor:
    shape = list(SHAPE)
    if isinstance(kind, S):
        shape[kind.dim] //= 2
    return torch.ones(shape[::-1]).permute(2, 1, 0) if turned else torch.ones(shape)


@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_buffers_are_those_that_are_counted(source: Type, target: Type, turned: bool) -> None:
    tensor = Tensor("x", SHAPE, "float32", True)
    forms = Sharding((source,)), Sharding((target,))
    conversion = Conversion("x", 0, *forms, regather=False)
    graph = SimpleNamespace(tensors={"x": tensor}, producer={"x": SimpleNamespace(op="relu")})
    keeps = SimpleNamespace(
        graph=graph,
        mesh=Mesh.of(2),
        precision="float32",
        turned={("x", forms[0])} if turned else set(),
    )
    said = _Messages(keeps).of((conversion,))  # type: ignore[arg-type]
    with fake_world(2):
        assert dist.group.WORLD is not None
        axis = Axis("x", dist.group.WORLD, 0, 2)
        assert said.forward_nbytes == _buffers(_operand(source, turned), axis, source, target)
        ends = dual(target), dual(source)
        gradient = _operand(ends[0], turned=False)
        assert said.backward_nbytes == _buffers(gradient, axis, *ends)
