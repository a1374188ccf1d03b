"""What every rank does to check gradients that are reduced in the precision of the step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import autopar
from autopar.errors import InputError
from autopar.runtime.counting import CountTraffic
from autopar.runtime.parallel import Parallel
from tests.distributed import compression_jobs
from tests.distributed.compression_jobs import Net
from tests.parity import check_traffic

SAMPLES = 8
LOW = {"bfloat16": "bfloat16/bfloat16", "float16": "float16/float16"}


def batch(step: int) -> dict[str, torch.Tensor]:
    """The batch of a step."""
    return {name: value.float() for name, value in compression_jobs.batch(step, SAMPLES).items()}


def made(precision: str, preset: str, shape: tuple[int, ...], **options: Any) -> Parallel:
    """A parallel model of the same weights each time."""
    torch.manual_seed(0)
    parallel = autopar.parallelize(
        Net(), shape, batch(0), preset=preset, precision=precision, hardware="cpu", **options
    )
    assert isinstance(parallel, Parallel)
    return parallel


def gradients(parallel: Parallel) -> dict[str, torch.Tensor]:
    """The whole gradients by name, in the dtype of the parameters."""
    found = {}
    for name, parameter in parallel.named_parameters():
        if parameter.grad is not None:
            assert isinstance(parameter.grad, DTensor)
            assert parameter.dtype == parameter.grad.dtype == torch.float32, name
            found[name] = parameter.grad.full_tensor()
    return found


def near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], roundings: float) -> None:
    """Equal up to so many roundings of bfloat16 of the largest entry."""
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        allowed = roundings * 2**-8 * float(other[name].abs().max())
        assert float((gradient - other[name]).abs().max()) <= allowed, name


def steps(preset: str, shape: tuple[int, ...]) -> None:
    """Near those reduced in float32, rounded to bfloat16 at least, with the bytes of the plan."""
    low, wide = made(LOW["bfloat16"], preset, shape), made("bfloat16", preset, shape)
    for step in range(3):
        with CountTraffic(low.device_mesh) as counted:
            loss = low(**batch(step))
            counted.direction = "backward"
            loss.backward()
        check_traffic(low, low.plan, counted)
        wide(**batch(step)).backward()
        mine, its = gradients(low), gradients(wide)
        near(mine, its, 2.0 * math.prod(shape))
        rounded = any(not torch.equal(mine[name], its[name]) for name in mine)
        assert rounded or preset not in ("ddp", "zero2"), "elsewhere it is once, in both"
        for parallel in (low, wide):
            parallel.zero_grad(set_to_none=step == 0)


def accumulates(preset: str) -> None:
    """Sums of two backwards are added in float32; under `no_sync` they travel once."""
    parallel, alone = made(LOW["bfloat16"], preset, (2,)), made(LOW["bfloat16"], preset, (2,))
    each = []
    for step in (1, 2):
        parallel(**batch(step)).backward()
        alone.zero_grad()
        alone(**batch(step)).backward()
        each.append(gradients(alone))
    for name, gradient in gradients(parallel).items():
        assert torch.equal(gradient, each[0][name] + each[1][name]), name
    summed = gradients(parallel)
    parallel.zero_grad()
    with parallel.no_sync():
        parallel(**batch(1)).backward()
    parallel(**batch(2)).backward()
    near(gradients(parallel), summed, 8.0)


def fails(preset: str) -> None:
    """A backward that fails leaves nothing behind, and an overflow only in its own gradients."""
    parallel, other = made(LOW["float16"], preset, (2,)), made(LOW["float16"], preset, (2,))

    def broken(_: torch.Tensor) -> None:
        raise RuntimeError("in the middle")

    for step in range(3):
        parallel.zero_grad()
        if step == 1:
            loss = parallel(**batch(9))
            loss.register_hook(broken)
            with pytest.raises(RuntimeError, match="in the middle"):
                loss.backward()
            parallel.zero_grad()
            (parallel(**batch(9)) * 1e9).backward()
            found = [gradient.isfinite().all() for gradient in gradients(parallel).values()]
            assert not all(map(bool, found))
            parallel.zero_grad()
        parallel(**batch(step)).backward()
        other.zero_grad()
        other(**batch(step)).backward()
    mine, its = gradients(parallel), gradients(other)
    assert all(torch.equal(mine[name], its[name]) for name in mine)


def trains(preset: str, shape: tuple[int, ...]) -> None:
    """Steps of AdamW with loss scaling, clipping and microbatches; weights stay near one process."""
    torch.manual_seed(0)
    model = Net()
    parallel = autopar.parallelize(
        model, shape, batch(0), preset=preset, precision=LOW["float16"], hardware="cpu"
    )
    scaler = parallel.grad_scaler(init_scale=2.0**10)
    mine = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        scaler.scale(parallel(**batch(step))).backward()
        scaler.unscale_(mine)
        parallel.clip_grad_norm_(1.0)
        scaler.step(mine)
        scaler.update()
        mine.zero_grad()
        model(**batch(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        plain.step()
        plain.zero_grad()
    for name, value in parallel.full_state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], atol=3e-3, rtol=0)


def refused() -> list[str]:
    """What excludes it."""
    said = []
    for options in ({"pipeline": 2}, {"compression": "int8"}):
        with pytest.raises(InputError) as error:
            made(LOW["bfloat16"], "ddp", (2,), **options)
        said.append(str(error.value))
    return said
