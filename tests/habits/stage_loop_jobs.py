"""Runs in pool workers: numbers over the parameters of a pipeline, whose ranks hold their own stages."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.errors import InputError
from tests.habits.outside_jobs import Base, batches, entropy

Model = Any
LOOP = "reads a number of '.*', as it did of '.*' before"
TOGETHER = "Values of several parameters .* are combined here"
ROOT = "pow.* of a sum over several parameters"
NORM = "only the gradients of this rank's stages"
REFUSED: dict[str, tuple[str, Callable[[Model], Any]]] = {
    "sum of squares of gradients": (
        LOOP, lambda m: sum(p.grad.square().sum().item() for p in m.parameters()),
    ),
    "float of weights": (LOOP, lambda m: sum(float(p.norm()) ** 2 for p in m.parameters())),
    "largest weight": (LOOP, lambda m: max(p.abs().max().item() for p in m.parameters())),
    "any is not finite": (LOOP, lambda m: any(p.grad.isnan().any() for p in m.parameters())),
    "all are finite": (LOOP, lambda m: all(torch.isfinite(p.grad).all() for p in m.parameters())),
    "all are equal": (LOOP, lambda m: all(torch.equal(p, p) for p in m.parameters())),
    "of detached gradients": (
        LOOP, lambda m: sum(p.grad.detach().abs().sum().item() for p in m.parameters()),
    ),
    "of data": (LOOP, lambda m: sum(p.data.abs().sum().item() for p in m.parameters())),
    "in a list first": (LOOP, lambda m: [float(g.abs().sum()) for g in gradients(m)]),
    "in a function": (LOOP, lambda m: [size_of(p) for p in m.parameters()]),
    "of a state dict": (LOOP, lambda m: [float(v.sum()) for v in m.state_dict().values()]),
    "one element of each": (LOOP, lambda m: [p.flatten()[0].item() for p in m.parameters()]),
    "stack of norms of weights": (TOGETHER, lambda m: torch.stack([p.norm() for p in weights(m)])),
    "largest as tensors": (TOGETHER, lambda m: max(p.abs().max() for p in weights(m))),
    "sum as tensors": (TOGETHER, lambda m: sum(p.grad.abs().sum() for p in m.parameters())),
    "all in one vector": (TOGETHER, lambda m: torch.cat([p.flatten() for p in weights(m)]).norm()),
    "of many at once": (TOGETHER, lambda m: sum(n.sum() for n in torch._foreach_abs(gradients(m)))),
    "norms of many at once": (NORM, lambda m: torch._foreach_norm(gradients(m))),
    "a penalty that is logged": (
        TOGETHER, lambda m: float(sum(p.square().sum() for p in m.parameters())),
    ),
    "a root of a penalty": (
        ROOT, lambda m: (sum(p.square().sum() for p in m.parameters()) ** 0.5).backward(),
    ),
}  # fmt: skip


def gradients(model: Model) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters()]


def weights(model: Model) -> list[torch.Tensor]:
    return [p.detach() for p in model.parameters()]


def size_of(tensor: torch.Tensor) -> float:
    return float(tensor.abs().sum())


def trained(single: nn.Module, **options: Any) -> tuple[Any, Any]:
    """A model after one backward, in one process and in stages."""
    batch = batches(1)[0]
    parallel = autopar.parallelize(
        copy.deepcopy(single), dist.get_world_size(), batch, loss=entropy, hardware="cpu", **options
    )
    entropy(single(batch["x"]), y=batch["y"]).backward()
    parallel.train_step(**batch)
    return single, parallel


def in_stages(model: type[nn.Module] = Base) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return trained(model().double(), pipeline=autopar.Pipeline(2, "gpipe", 2))


def refused() -> None:
    """What covers this rank's stages alone raises on every rank, and names what covers all."""
    _, parallel = in_stages()
    for name, (words, number) in REFUSED.items():
        parallel.train_step(**batches(1)[0])
        with pytest.raises(InputError) as found:
            raise AssertionError(f"{name}: {number(parallel)}")
        said = str(found.value)
        assert re.search(words, said), (name, said)
        assert "reduce_over_parameters" in said or words in (NORM, ROOT), (name, said)


def of_one_parameter() -> None:
    """Numbers of one parameter are those of one process, several of them and in every step, too."""
    single, parallel = in_stages()
    theirs = dict(single.named_parameters())
    held = dict(parallel.named_parameters())
    first = next(iter(held))
    for _ in range(2):
        for name in (first, first):
            p, q = held[name], theirs[name]
            assert math.isclose(p.grad.abs().mean().item(), q.grad.abs().mean().item())
            assert math.isclose(float(p.grad.std() / p.std()), float(q.grad.std() / q.std()))
            assert not p.isnan().any() and torch.stack([p.min(), p.max()]).shape == (2,)
        parallel.zero_grad()
        parallel.train_step(**batches(1)[0])
    # Two named parameters, at two places of the program.
    names = list(held)[:2]
    assert math.isclose(size_of(held[names[0]]), size_of(theirs[names[0]]))
    assert math.isclose(size_of(held[names[1]]), size_of(theirs[names[1]]))
    # This rank's own numbers, which the user asks for.
    own = sum(p.full_tensor().abs().sum().item() for p in parallel.parameters())
    assert math.isclose(own, sum(float(theirs[name].abs().sum()) for name in held))


def in_other_steps() -> None:
    """A place that reads another parameter in another step is no loop over parameters."""
    _, parallel = in_stages()
    for p in list(parallel.parameters())[:2]:
        size_of(p)
        parallel.train_step(**batches(1)[0])


def penalties() -> None:
    """A sum with one term for each parameter has the gradients of one process."""
    single, parallel = in_stages()
    for model in (single, parallel):
        total = 1e-2 * sum(p.square().sum() for p in model.parameters())
        (total / 2 + torch.stack([p.abs().sum() for p in model.parameters()]).sum()).backward()
    theirs = dict(single.named_parameters())
    for name, p in parallel.named_parameters():
        torch.testing.assert_close(
            p.grad.full_tensor(), theirs[name].grad, rtol=1e-9, atol=1e-12, msg=name
        )


class Tied(nn.Module):
    """One weight in the first and the last layer, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.last.weight = self.first.weight
        self.middle.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.middle(self.first(x).relu()).relu())
        return made


def square_of_gradient(p: torch.Tensor) -> Any:
    return None if p.grad is None else p.grad.square().sum()


def has_nan(p: torch.Tensor) -> Any:
    return False if p.grad is None else p.grad.isnan().any()


def reductions(preset: str) -> None:
    """Equal to one process on every rank, tied weights once, with and without stages."""
    torch.manual_seed(0)
    options: dict[str, Any] = {} if preset == "stages" else {"preset": preset}
    if "stages" in preset:
        options["pipeline"] = autopar.Pipeline(2, "gpipe", 2)
    if preset == "fsdp in stages":
        options["preset"] = "fsdp"
    single, parallel = trained(Tied().double(), **options)
    ours, theirs = parallel.reduce_over_parameters, list(single.parameters())
    counted = ours(torch.numel)
    assert counted == sum(map(torch.numel, theirs)) and type(counted) is int
    expected = sum(float(p.grad.square().sum()) for p in theirs if p.grad is not None)
    assert math.isclose(ours(square_of_gradient), expected, rel_tol=1e-9)
    assert math.isclose(
        ours(lambda p: p.abs().max(), "max"), max(float(p.abs().max()) for p in theirs)
    )
    assert math.isclose(ours(lambda p: p.min().item(), "min"), min(float(p.min()) for p in theirs))
    assert ours(has_nan, "any") is False and ours(lambda p: bool(p.isfinite().all()), "all") is True
    held = dict(parallel.named_parameters())
    if "middle.weight" in held:
        held["middle.weight"].grad.fill_(math.nan)
    assert ours(has_nan, "any") is True
    assert math.isnan(ours(lambda p: None if p.grad is None else p.grad.max(), "max"))
    with pytest.raises(InputError, match=re.escape("no reduction 'mean'; there are sum, max")):
        ours(torch.numel, "mean")
    with pytest.raises(InputError, match=r"returned a .* of shape .*Let it return one number"):
        ours(lambda p: p.abs())
    with pytest.raises(InputError, match="no max of no numbers"):
        ours(lambda p: None, "max")


def fails_on_one_stage() -> None:
    """A function that raises on one stage raises on all ranks, and the next call runs."""
    _, parallel = in_stages()
    held = dict(parallel.named_parameters())

    def function(p: torch.Tensor) -> int:
        if p is held.get("head.bias"):
            raise ValueError("broken on purpose")
        return 1

    here = "head.bias" in held
    with pytest.raises(ValueError if here else InputError, match="broken on purpose"):
        parallel.reduce_over_parameters(function)
    assert parallel.reduce_over_parameters(lambda p: 1) == 8
