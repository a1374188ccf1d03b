"""Runs in pool workers: what only ranks of one stage refuse, whose loop goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

import autopar
from autopar.errors import InputError, RankFailedError
from autopar.runtime.closed import Elsewhere
from tests.distributed.jobs import same_weights
from tests.habits.outside_jobs import Base, batches, entropy
from tests.habits.stage_loop_jobs import in_stages

LIMIT_S = 20.0
Undo = Callable[[], Any]


def frozen(p: torch.nn.Parameter) -> Undo:
    p.requires_grad_(False)
    return lambda: p.requires_grad_(True)


def hooked(p: torch.nn.Parameter) -> Undo:
    return p.register_hook(lambda gradient: gradient).remove


def assign_data(p: torch.nn.Parameter, value: torch.Tensor) -> None:
    """As a library in C++ does: ``p.data = value`` is refused at once."""
    torch.Tensor.data.__set__(p, value)  # type: ignore[attr-defined]


def other_data(p: torch.nn.Parameter) -> Undo:
    kept = p.data
    assign_data(p, p.data * 2)

    def undo() -> None:
        assign_data(p, kept)

    return undo


SPOILS: dict[str, tuple[str, Callable[[torch.nn.Parameter], Undo]]] = {
    "requires_grad_": ("no longer requires gradients", frozen),
    "a gradient hook": ("has a gradient hook", hooked),
    "other data": ("data was assigned", other_data),
}


def steps(kind: str, rank: int) -> None:
    """All ranks raise the refusal of one at once, and train on once its reason is gone."""
    words, spoil = SPOILS[kind]
    single, parallel = in_stages()
    batch = batches(1)[0]
    here = dist.get_rank() == rank
    undo = spoil(next(parallel.parameters())) if here else None
    began = time.monotonic()
    with pytest.raises(InputError, match=words):
        parallel.train_step(**batch)
    assert time.monotonic() - began < LIMIT_S
    if undo is not None:
        undo()
        if kind == "other data":  # it is told once more: this is other memory again
            with pytest.raises(InputError, match=words):
                parallel.state_dict()
    parallel.zero_grad()
    parallel.train_step(**batch)
    torch.optim.SGD(parallel.parameters(), lr=0.1).step()
    torch.optim.SGD(single.parameters(), lr=0.1).step()
    same_weights(parallel, single, 1e-9)


def evaluation(rank: int) -> None:
    """An evaluation is refused alike, and breaks nothing."""
    _, parallel = in_stages()
    batch = batches(1)[0]
    parallel.eval()
    if dist.get_rank() == rank:
        p = next(parallel.parameters())
        assign_data(p, p.data * 2)
    with torch.no_grad(), pytest.raises(InputError, match="data was assigned"):
        parallel(**batch)
    with torch.no_grad():
        assert parallel(**batch).isfinite()


def plain(p: torch.Tensor) -> None:
    p.grad = None
    p.grad = torch.zeros_like(p.full_tensor())


def updates(on: tuple[int, ...]) -> None:
    """An update that is refused on one rank, whose loop goes on, ends the training on all ranks."""
    _, parallel = in_stages()
    batch = batches(1)[0]
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    if dist.get_rank() in on:
        plain(next(parallel.parameters()))
        with pytest.raises(InputError, match="was set to a plain tensor"):
            optimizer.step()
    else:
        optimizer.step()
    parallel.zero_grad()
    if len(on) == 2:  # nothing was updated
        parallel.train_step(**batch)
        return
    began = time.monotonic()
    with pytest.raises(RankFailedError, match=f"refused to step on rank {on[0]} alone"):
        parallel.train_step(**batch)
    assert time.monotonic() - began < LIMIT_S
    with pytest.raises(RankFailedError, match="refused to step on rank"):
        parallel.train_step(**batch)


def asynchronous(rank: int) -> None:
    """A gradient that one stage has already is refused on all."""
    torch.manual_seed(0)
    batch = batches(1)[0]
    parallel = autopar.parallelize(
        Base().double(),
        2,
        batch,
        loss=entropy,
        hardware="cpu",
        pipeline=autopar.Pipeline(2, "pipedream", 1, asynchronous=True),
    )
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    p = next(parallel.parameters())
    if dist.get_rank() == rank:
        p.grad = distribute_tensor(torch.zeros_like(p.full_tensor()), p.device_mesh, p.placements)
    began = time.monotonic()
    with pytest.raises(InputError, match="has a gradient already"):
        parallel.train_steps([batch, batch], optimizer)
    assert time.monotonic() - began < LIMIT_S
    parallel.zero_grad()
    p.grad = None
    assert parallel.train_steps([batch, batch], optimizer).isfinite().all()


def loads(rank: int) -> None:
    """A state dict that lacks a tensor of one stage changes nothing on any rank."""
    _, parallel = in_stages()
    kept = {name: tensor.clone() for name, tensor in parallel.full_state_dict().items()}
    given = {name: tensor * 2 for name, tensor in parallel.state_dict().items()}
    if dist.get_rank() == rank:
        given.popitem()
    with pytest.raises(InputError, match="does not fit the model: it has no"):
        parallel.load_state_dict(given)
    for name, tensor in parallel.full_state_dict().items():
        assert torch.equal(tensor, kept[name]), name


def of_other_stage() -> None:
    """A parameter of another stage as source or target of a copy: refused by its name."""
    _, parallel = in_stages()
    own = next(parallel.parameters())
    layers = [m for m in parallel.modules() if isinstance(getattr(m, "weight", None), Elsewhere)]
    other = layers[0].weight
    with torch.no_grad():
        for use in (lambda: own.copy_(other), lambda: other.copy_(own), lambda: own + other):
            with pytest.raises(InputError, match="held by the ranks of another stage"):
                use()
