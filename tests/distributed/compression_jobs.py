"""What every rank does to compare compressed gradients with those of one process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.bucket import Bucket
from autopar.runtime.bytewise import BytewiseSum
from autopar.runtime.counting import CountTraffic
from autopar.runtime.parallel import Parallel
from autopar.runtime.powersgd import LowRankSum
from tests.distributed import scattered_jobs

WIDTH, SAMPLES = 64, 4
"""A batch of so few samples has gradients of a rank that PowerSGD's factors reach."""


class Net(nn.Module):
    """Three layers; the gradients of their weights are compressed, those of vectors are not."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.idle = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.norm(torch.tanh(layer(x)))
        return (x - y).square().mean()


def batch(step: int, samples: int = SAMPLES, width: int = WIDTH) -> dict[str, torch.Tensor]:
    """The batch of a step."""
    draw = torch.Generator().manual_seed(step)
    return {
        name: torch.randn(samples, width, generator=draw, dtype=torch.float64)
        for name in ("x", "y")
    }


def both(
    compression: Any,
    preset: str,
    shape: tuple[int, ...],
    samples: int = SAMPLES,
    width: int = WIDTH,
) -> tuple[Parallel, Net]:
    """The parallel model, and the same in one process."""
    torch.manual_seed(0)
    model = Net(width).double()
    example = batch(0, samples, width)
    parallel = autopar.parallelize(
        model, shape, example, preset=preset, compression=compression, hardware="cpu"
    )
    assert isinstance(parallel, Parallel)
    return parallel, model


def equal(compression: Any, preset: str, shape: tuple[int, ...]) -> None:
    """Factors as wide as the gradients' rank leave out nothing, over several steps."""
    parallel, model = both(compression, preset, shape)
    assert any(bucket._compressed for bucket in parallel._reducer.buckets)
    mine = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    its = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        for trained, optimizer in ((parallel, mine), (model, its)):
            optimizer.zero_grad()
            trained(**batch(step)).backward()
        compare(parallel, model)
        mine.step()
        its.step()


def compare(parallel: Parallel, model: nn.Module, tolerance: float = 1e-9) -> None:
    """Gradients are equal, or None in both."""
    whole = dict(parallel.named_parameters())
    for name, parameter in model.named_parameters():
        found = whole[name].grad
        if parameter.grad is None:
            assert found is None, name
        else:
            torch.testing.assert_close(
                full(found),
                parameter.grad,
                rtol=0,
                atol=tolerance * float(parameter.grad.abs().max()),
            )


def full(gradient: torch.Tensor | None) -> torch.Tensor:
    """A gradient as one tensor."""
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()


def nothing_is_lost(compression: Any, preset: str, shape: tuple[int, ...]) -> None:
    """All gradients that were given, and what is left out at the end, are what one process has."""
    parallel, model = both(compression, preset, shape, samples=16)
    given: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    differs = False
    for step in range(5):
        for trained, sums in ((parallel, given), (model, exact)):
            trained.zero_grad()
            trained(**batch(step, 16)).backward()
            for name, parameter in trained.named_parameters():
                gradient = parameter.grad
                if gradient is not None:
                    added = full(gradient) if trained is parallel else gradient
                    sums[name] = sums.get(name, 0.0) + added
        differs |= any(not torch.allclose(given[name], exact[name], rtol=1e-6) for name in exact)
    assert differs, "nothing was left out"
    left = left_out(parallel)
    assert left.keys() == {f"layers.{n}.weight" for n in range(3)}
    for name, total in exact.items():
        torch.testing.assert_close(given[name] + left.get(name, 0.0), total, rtol=0, atol=1e-12)


def nothing_is_lost_in_small_buckets(compression: Any, preset: str, shape: tuple[int, ...]) -> None:
    """The same with a bucket for each weight."""
    with scattered_jobs.small():
        nothing_is_lost(compression, preset, shape)


def left_out(parallel: Parallel) -> dict[str, torch.Tensor]:
    """What all ranks together left out, by parameter, for one compressed sum per gradient."""
    found = {}
    for bucket in parallel._reducer.buckets:
        for axis, each in bucket._compressed.items():
            for name, mine in _left_out(bucket, each):
                whole = mine.clone()
                for other in {axis, *(hop.axis for hop in bucket.hops if not hop.gathers)}:
                    dist.all_reduce(whole, group=bucket.axes[other].group)
                found[name] = whole
    return found


def _left_out(bucket: Bucket, held: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(held, LowRankSum):
        for slot, matrix in zip(bucket.slots, held._matrices, strict=True):
            if matrix.left_out is not None:
                yield slot.name, matrix.left_out.view(slot.leaf.shape)
        return
    assert isinstance(held, BytewiseSum)
    if held._left_out is not None:
        parts = held._left_out.split(bucket._sizes, -1)
        for number, (slot, part) in enumerate(zip(bucket.slots, parts, strict=True)):
            if number not in bucket.unused and slot.parameter.grad is not None:
                yield slot.name, part[..., : slot.entry.numel].reshape(slot.leaf.shape)


def accumulates(compression: Any, preset: str) -> None:
    """Sums over backwards, with and without `no_sync`, are those of one process."""
    parallel, model = both(compression, preset, (2,))
    for quiet in (True, False):
        parallel.zero_grad()
        model.zero_grad()
        for step, half in enumerate((batch(1, 2), batch(2, 2))):
            model(**half).backward()
            wide = {name: value.repeat(2, 1) for name, value in half.items()}
            if quiet and step == 0:
                with parallel.no_sync():
                    parallel(**wide).backward()
            else:
                parallel(**wide).backward()
        compare(parallel, model)


def travels_once(compression: Any, preset: str) -> None:
    """The sum of two backwards is that of what each of them gives alone."""
    (summed, _), (apart, _) = (
        both(compression, preset, (2,), 16),
        both(compression, preset, (2,), 16),
    )
    alone: list[torch.Tensor] = []
    for step in range(2):
        summed(**batch(step, 16)).backward()
        apart.zero_grad()
        apart(**batch(step, 16)).backward()
        found = [full(p.grad) for p in apart.parameters() if p.grad is not None]
        alone = [a + b for a, b in zip(alone, found, strict=True)] if alone else found
    mine = [full(p.grad) for p in summed.parameters() if p.grad is not None]
    for one, other in zip(mine, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def fails(compression: Any, preset: str) -> None:
    """A backward that fails leaves behind nothing of its gradients."""
    (parallel, _), (other, _) = both(compression, preset, (2,)), both(compression, preset, (2,))

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
            fail_late(parallel)
            parallel.zero_grad()
        parallel(**batch(step)).backward()
        other.zero_grad()
        other(**batch(step)).backward()
    same(parallel, other)


def fail_late(parallel: Parallel) -> None:
    """A backward fails after a compressed bucket was summed."""
    drain = Bucket.drain
    with pytest.MonkeyPatch.context() as patch:

        def broken(bucket: Bucket) -> None:
            drain(bucket)
            if bucket._compressed:
                raise RuntimeError("at the end")

        patch.setattr(Bucket, "drain", broken)
        with pytest.raises(RuntimeError, match="at the end"):
            parallel(**batch(9)).backward()


def overflows(compression: Any, preset: str) -> None:
    """A step that overflows has gradients that are not finite, and leaves no trace in the next."""
    (parallel, _), (other, _) = both(compression, preset, (2,)), both(compression, preset, (2,))
    for step in range(3):
        if step:
            parallel.zero_grad()
            wrong = batch(step)
            wrong["y"][-1, 3] = math.inf
            parallel(**wrong).backward()
            found = [full(p.grad) for p in parallel.parameters() if p.grad is not None]
            assert not all(bool(gradient.isfinite().all()) for gradient in found)
        for trained in (parallel, other):
            trained.zero_grad()
            trained(**batch(step)).backward()
    same(parallel, other)


def same(one: Parallel, other: Parallel) -> None:
    """Both models have the same gradients, and left out the same."""
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (its.grad is None)
        if mine.grad is not None:
            assert torch.equal(full(mine.grad), full(its.grad))
    mine_left, its_left = left_out(one), left_out(other)
    assert mine_left.keys() == its_left.keys()
    for name, part in mine_left.items():
        assert torch.equal(part, its_left[name]), name


def traffic(compression: Any, preset: str, shape: tuple[int, ...], width: int = WIDTH) -> None:
    """Bytes and calls of the backward are those that the plan predicts."""
    parallel, _ = both(compression, preset, shape, width=width)
    for step in range(2):
        loss = parallel(**batch(step, width=width))
        with CountTraffic(parallel.device_mesh) as counted:
            counted.direction = "backward"
            loss.backward()
        parallel.zero_grad()
    flows = [flow for flow in parallel.plan.estimate.flows if flow.direction == "backward"]
    assert flows
    for figure, found in (("nbytes", counted.nbytes), ("calls", counted.calls)):
        said: Counter[tuple[str, str, str]] = Counter()
        for flow in flows:
            said[flow.axis, flow.collective, flow.direction] += getattr(flow, figure)
        assert said == found, (figure, said, found)


def begins_late(preset: str) -> None:
    """The first steps are exact; the gradients of the next are not."""
    late = autopar.Compression("int8", after=2)
    (parallel, _), (exact, _) = both(late, preset, (2,)), both(None, preset, (2,))
    for step in range(4):
        for trained in (parallel, exact):
            trained.zero_grad()
            trained(**batch(step)).backward()
        mine = [full(p.grad) for p in parallel.parameters() if p.grad is not None]
        its = [full(p.grad) for p in exact.parameters() if p.grad is not None]
        are_close = all(
            torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(mine, its, strict=True)
        )
        assert are_close == (step < 2), step


def rounds(method: str) -> None:
    """A byte per element is off by at most half of its last place for each rank, and for the sum."""
    parallel, model = both(method, "ddp", (2,))
    parallel(**batch(0)).backward()
    model(**batch(0)).backward()
    mine = dict(parallel.named_parameters())
    parts = [model_of_rank(rank) for rank in range(2)]
    for number in range(3):
        name = f"layers.{number}.weight"
        gradients = [dict(part.named_parameters())[name].grad for part in parts]
        assert all(gradient is not None for gradient in gradients)
        largest = sum(float(gradient.abs().max()) for gradient in gradients if gradient is not None)
        step = 1 / 127 if method == "int8" else 1 / 8
        exact = dict(model.named_parameters())[name].grad
        assert exact is not None
        off = (full(mine[name].grad) - exact).abs().max()
        assert 0 < float(off) <= largest * step * 1.01


def model_of_rank(rank: int) -> Net:
    """The gradients of a rank's own samples."""
    torch.manual_seed(0)
    model = Net().double()
    half = {name: value[2 * rank : 2 * rank + 2] for name, value in batch(0).items()}
    (model(**half) / 2).backward()
    return model
