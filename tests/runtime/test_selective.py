"""Selective recomputation's cache: what the first run keeps, and what the second run finds."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autopar.errors import InputError, InternalError
from autopar.runtime.selective import kept_reduction, selective

reductions: list[torch.Tensor] = []


class Reduce(torch.autograd.Function):
    """Half of the rows, as a reduce-scatter leaves them."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        def reduce() -> torch.Tensor:
            reductions.append(x)
            return x[: len(x) // 2].clone()

        return kept_reduction(x, reduce)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return torch.cat([gradient, torch.zeros_like(gradient)])


def block(x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    partial = x.sin() @ one
    made: torch.Tensor = Reduce.apply(partial.view(len(x), -1))
    return (made.tanh() @ two).exp()


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((4, 3), (3, 5), (5, 2))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def recomputed(function: object, *inputs: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = checkpoint(function, *inputs, use_reentrant=False, context_fn=selective)
    return made


def test_gradients_are_equal_and_nothing_is_reduced_again() -> None:
    inputs = operands()
    wanted = torch.autograd.grad(block(*inputs).sum(), inputs)
    reductions.clear()
    found = torch.autograd.grad(recomputed(block, *inputs).sum(), inputs)
    assert len(reductions) == 1
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_partial_sum_is_not_kept() -> None:
    inputs, seen = operands(), []

    def watched(*given: torch.Tensor) -> torch.Tensor:
        partial = given[0].sin() @ given[1]
        seen.append(partial)
        made: torch.Tensor = Reduce.apply(partial)
        return (made.tanh() @ given[2]).exp()

    recomputed(watched, *inputs).sum().backward()
    first, second = seen
    assert not first.isnan().any()
    assert second.isnan().all()
    assert second.untyped_storage().nbytes() == second.element_size()


def test_a_second_reduction_replaces_the_first() -> None:
    """As on two axes: only the last is kept."""
    inputs, seen = operands(), []

    def twice(*given: torch.Tensor) -> torch.Tensor:
        once: torch.Tensor = Reduce.apply(given[0].sin() @ given[1])
        seen.append(once)
        made: torch.Tensor = Reduce.apply(once)
        return (made.tanh() @ given[2]).exp()

    wanted = torch.autograd.grad(twice(*inputs).sum(), inputs)
    seen.clear()
    found = torch.autograd.grad(recomputed(twice, *inputs).sum(), inputs)
    assert seen[1].isnan().all() and not seen[0].isnan().any()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_further_backwards_compute_everything_again() -> None:
    inputs = operands()
    wanted = torch.autograd.grad(block(*inputs).sum(), inputs)
    reductions.clear()
    loss = recomputed(block, *inputs).sum()
    for runs in range(3):
        found = torch.autograd.grad(loss, inputs, retain_graph=True)
        assert len(reductions) == 1 + runs
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_result_that_is_changed_in_place_raises() -> None:
    def changing(x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        made = x @ one
        with torch.no_grad():
            made.add_(1)
        return (made * 2).tanh() @ two

    loss = recomputed(changing, *operands()).sum()
    with pytest.raises(InputError, match="changed in place"):
        loss.backward()


def test_a_forward_that_differs_raises() -> None:
    runs: list[int] = []

    def differing(x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        made = x @ one if len(runs) == 1 else torch.addmm(one[0], x, one)
        return made.tanh() @ two

    loss = recomputed(differing, *operands()).sum()
    with pytest.raises(InternalError, match="must do the same"):
        loss.backward()
