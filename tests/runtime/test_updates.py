"""An optimizer that steps on local tensors leaves what it would leave of DTensors, and of plain ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from autopar.request.coupling import ELEMENTWISE
from autopar.runtime import _torch, updates

SHAPES = [(3, 4), (5,), (2, 3, 2)]
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    **{kind.__name__: partial(kind, lr=0.01) for kind in ELEMENTWISE},
    "momentum": partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "amsgrad": partial(optim.AdamW, amsgrad=True),
    "fused": partial(optim.AdamW, fused=True),
    "centered": partial(optim.RMSprop, centered=True, momentum=0.5),
    "foreach": partial(optim.Adam, foreach=True),
    "maximize": partial(optim.Adam, maximize=True),
}


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[nn.Parameter]:
    """The parameters that were stepped on locally, once per step."""
    seen: list[nn.Parameter] = []
    original = updates._swapped

    def spy(optimizer: optim.Optimizer, parameter: Any) -> Any:
        seen.append(parameter)
        return original(optimizer, parameter)

    monkeypatch.setattr(updates, "_swapped", spy)
    return seen


def values(number: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + number)
    return torch.randn(SHAPES[number], generator=generator)


def plain() -> list[nn.Parameter]:
    return [nn.Parameter(values(number, 0)) for number in range(len(SHAPES))]


def ours(mesh: DeviceMesh) -> list[nn.Parameter]:
    made = [nn.Parameter(DTensor.from_local(p.detach(), mesh, [Replicate()])) for p in plain()]
    for parameter in made:
        updates.update_locally(parameter, "p")
    return made


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(parameters):
        gradient = values(number, step)
        if isinstance(parameter, DTensor):
            gradient = _torch.dtensor_like(gradient, parameter)
        parameter.grad = gradient


def local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_plain_tensors(
    name: str, mesh: DeviceMesh, stepped: list[nn.Parameter]
) -> None:
    mine, theirs = ours(mesh), plain()
    optimizers = [OPTIMIZERS[name](mine), OPTIMIZERS[name](theirs)]
    for step in range(1, 4):
        for parameters, optimizer in zip((mine, theirs), optimizers, strict=True):
            give_gradients(parameters, step)
            optimizer.step()
    assert len(stepped) == 3 * len(SHAPES)
    assert all(a is b for a, b in zip(optimizers[0].param_groups[0]["params"], mine, strict=True))
    assert [*optimizers[0].state] == [p for p in mine if p in optimizers[0].state]
    for a, b in zip(mine, theirs, strict=True):
        assert isinstance(a, DTensor) and torch.equal(a.to_local(), b)
        state, expected = (o.state.get(p, {}) for o, p in zip(optimizers, (a, b), strict=True))
        assert [*state] == [*expected]
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                assert isinstance(value, DTensor) and value.placements == a.placements, key
            assert torch.equal(torch.as_tensor(local(value)), torch.as_tensor(expected[key])), key


def test_states_are_those_of_dtensors_that_step_as_such(mesh: DeviceMesh) -> None:
    """Dtype, layout and kind of each; a state dict of one loads into the other."""
    mine, theirs = ours(mesh), ours(mesh)
    for parameter in theirs:
        delattr(parameter, updates.OURS)
    optimizers = [optim.AdamW(mine), optim.AdamW(theirs)]
    for step in (1, 2):
        for parameters, optimizer in zip((mine, theirs), optimizers, strict=True):
            give_gradients(parameters, step)
            optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(mine, theirs, strict=True):
        for key, value in optimizers[1].state[b].items():
            found = optimizers[0].state[a][key]
            assert type(found) is type(value) and torch.equal(local(found), local(value)), key


class Derived(optim.SGD):
    """May do anything."""


def closing(optimizer: optim.Optimizer) -> None:
    optimizer.step(lambda: torch.zeros(()))


def watched(optimizer: optim.Optimizer) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.step()


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (partial(Derived, lr=0.1), optim.Optimizer.step),
        (partial(optim.SGD, lr=0.1), closing),
        (partial(optim.SGD, lr=0.1), watched),
    ],
)
def test_others_step_on_dtensors(
    make: Callable[[Any], optim.Optimizer], step: Any, mesh: DeviceMesh, stepped: list[nn.Parameter]
) -> None:
    parameters = ours(mesh)[:1]
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    if step is optim.Optimizer.step:
        optimizer.step()
    else:
        step(optimizer)
    assert not stepped


def test_neither_do_numbers_nor_parameters_of_others(
    mesh: DeviceMesh, stepped: list[nn.Parameter]
) -> None:
    number = nn.Parameter(DTensor.from_local(torch.tensor(2.0), mesh, [Replicate()]))
    updates.update_locally(number, "n")
    for parameters in ([number], [*ours(mesh), nn.Parameter(torch.ones(2))]):
        optimizer = optim.SGD(parameters, lr=0.1)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert not stepped


def test_a_step_that_fails_leaves_an_optimizer_that_works(mesh: DeviceMesh) -> None:
    parameters = ours(mesh)
    optimizer = optim.AdamW(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    optimizer.param_groups[0]["betas"] = ("nonsense", 0.9)
    give_gradients(parameters, 2)
    with pytest.raises((TypeError, ValueError)):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], parameters, strict=True))
    assert len(optimizer.state) == len(SHAPES)
