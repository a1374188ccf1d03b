"""Weight gradients that wait are those of a plain backward, and really wait."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from autopar.runtime.deferred import Deferred, at_once, deferring


def leaves(seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    shapes = [(5, 7), (5,), (5, 4), (4, 3)]
    return tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)


def loss_of(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor, u: torch.Tensor
) -> torch.Tensor:
    hidden = F.linear(x, w, b).tanh()
    hidden = torch.addmm(torch.ones(4, dtype=x.dtype), hidden.flatten(0, 1), v).relu()
    return (hidden @ u).square().sum() + (hidden @ u).sum()


@pytest.mark.parametrize("gathered", [False, True])
def test_equal_and_late(gathered: bool) -> None:
    parameters = leaves()
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)

    def weights() -> tuple[torch.Tensor, ...]:
        return tuple(p * 1.0 for p in parameters) if gathered else parameters

    want = torch.autograd.grad(loss_of(x, *weights()), (x, *parameters))
    deferred = Deferred(frozenset(map(id, parameters)))
    with deferring(deferred):
        loss = loss_of(x, *weights())
    loss.backward()
    assert x.grad is not None and torch.allclose(x.grad, want[0], atol=1e-12)
    w, b, v, u = parameters
    assert w.grad is None and v.grad is None and u.grad is None and b.grad is not None
    assert len(deferred.left) == 4
    deferred.run()
    for parameter, gradient in zip(parameters, want[1:], strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient, atol=1e-12)


@pytest.mark.parametrize("gathered", [False, True])
def test_microbatches_add_up(gathered: bool) -> None:
    """A second microbatch's gradients join the first one's, in the tensors that hold these."""
    parameters = leaves()
    total = [torch.zeros_like(parameter) for parameter in parameters]
    deferred = Deferred(frozenset(map(id, parameters)))
    first: list[torch.Tensor | None] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
        weights = tuple(p * 1.0 for p in parameters) if gathered else parameters
        for sum_, part in zip(
            total, torch.autograd.grad(loss_of(x, *weights), parameters), strict=True
        ):
            sum_ += part
        weights = tuple(p * 1.0 for p in parameters) if gathered else parameters
        with deferring(deferred):
            loss = loss_of(x, *weights)
        loss.backward()
        deferred.run()
        first = first or [parameter.grad for parameter in parameters]
    for parameter, want, held in zip(parameters, total, first, strict=True):
        assert parameter.grad is not None and parameter.grad is held
        assert torch.allclose(parameter.grad, want, atol=1e-12)


def test_what_depends_on_the_input_does_not_wait() -> None:
    """A product with a matrix that an activation made: its gradient belongs to the input's."""
    (w, *_), x = leaves(), torch.randn(7, 7, dtype=torch.float64, requires_grad=True)
    deferred = Deferred(frozenset([id(w)]))
    with deferring(deferred):
        loss = F.linear(x, w @ x).sum()
    want = torch.autograd.grad(F.linear(x, w @ x).sum(), (x, w))
    loss.backward()
    deferred.run()
    assert x.grad is not None and torch.allclose(x.grad, want[0], atol=1e-12)
    assert w.grad is not None and torch.allclose(w.grad, want[1], atol=1e-12)


def test_a_recomputed_block_puts_nothing_off() -> None:
    (w, *_), x = leaves(), torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    deferred = Deferred(frozenset([id(w)]))

    def block(x: torch.Tensor) -> torch.Tensor:
        with at_once():
            return F.linear(x, w).tanh()

    with deferring(deferred):
        loss = checkpoint(block, x, use_reentrant=False).sum()
    loss.backward()
    assert not deferred.left and w.grad is not None


@pytest.mark.parametrize("gathered", [False, True])
def test_whoever_waits_hears_of_complete_gradients_only(gathered: bool) -> None:
    """Of each parameter once, behind its last product; of none where they are gathered."""
    parameters = leaves()
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    deferred = Deferred(frozenset(map(id, parameters)))
    weights = tuple(p * 1.0 for p in parameters) if gathered else parameters
    with deferring(deferred):
        loss = loss_of(x, *weights)
    loss.backward()
    heard: list[tuple[torch.Tensor, torch.Tensor]] = []

    def arrived(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        heard.append((leaf, leaf.grad.clone()))

    deferred.run(arrived)
    w, _, v, u = parameters
    late = [] if gathered else [w, v, u]  # two products read `u`
    assert sorted(id(leaf) for leaf, _ in heard) == sorted(map(id, late))
    for leaf, gradient in heard:
        assert leaf.grad is not None and torch.equal(gradient, leaf.grad)
