"""Checks of values that only raise are left out; what decides anything else is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import distributions as d

from autopar.capture import capture
from autopar.errors import CaptureError
from tests.capture.asserting import Checked, asserted
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small

Body = Callable[[Small, torch.Tensor], torch.Tensor]


def checked(m: Small, x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] > 0)
    torch._check_tensor_all(x > -100, lambda: "too small")
    torch._assert_async((x > -100).all())
    torch._assert((x > -100).all(), "too small")
    return m.linear(x).sum()


def normal(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    return -d.Normal(hidden, hidden.exp()).log_prob(x).mean()


def validated(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    return -d.Normal(hidden, hidden.exp(), validate_args=True).log_prob(x).mean()


def divergence(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    prior = d.Normal(torch.zeros_like(hidden), torch.ones_like(hidden))
    return d.kl_divergence(d.Normal(hidden, hidden.exp()), prior).mean()


def categorical(m: Small, x: torch.Tensor) -> torch.Tensor:
    return -d.Categorical(logits=m.linear(x)).log_prob(x.argmax(-1)).mean()


def mixture(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    parts = d.Normal(hidden, hidden.exp())
    made = d.MixtureSameFamily(d.Categorical(logits=hidden), parts)
    return -made.log_prob(x[:, 0]).mean() - d.Independent(parts, 1).log_prob(x).mean()


def beta(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x).exp()
    return -d.Beta(hidden, hidden + 1).log_prob(x.sigmoid()).mean()


@pytest.mark.parametrize(
    "body", [asserted, checked, normal, validated, divergence, categorical, mixture, beta]
)
def test_left_out(body: Body) -> None:
    model, inputs = small(body)
    captured_equals_eager(model, inputs)


def test_distributions_validate_again_behind_a_capture() -> None:
    capture(*small(normal))
    with pytest.raises(ValueError, match="scale"):
        d.Normal(torch.zeros(2), -torch.ones(2))
    with pytest.raises(RuntimeError, match="too small"):
        torch._check_tensor_all(torch.tensor([False]), lambda: "too small")


def test_an_assertion_of_known_values_is_made() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        assert (torch.arange(4) > 0).all(), "starts at zero"
        return m.linear(x).sum()

    with pytest.raises(CaptureError, match="starts at zero"):
        capture(*small(body))


def raises(m: Small, x: torch.Tensor) -> torch.Tensor:
    if (x < -100).any():
        raise ValueError("too small")
    return m.linear(x).sum()


def says(m: Small, x: torch.Tensor) -> torch.Tensor:
    if torch.isnan(x).any():
        print("not a number")
    return m.linear(x).sum()


def asserted_number(m: Small, x: torch.Tensor) -> torch.Tensor:
    assert x.max().item() < 1000
    return m.linear(x).sum()


@pytest.mark.parametrize("body", [raises, says, asserted_number])
def test_refused_with_a_remedy(body: Body) -> None:
    with pytest.raises(CaptureError, match=r"assert torch\.all\(\.\.\.\)"):
        capture(*small(body))


def kept(m: Small, x: torch.Tensor) -> torch.Tensor:
    positive = bool((x > 0).all())
    assert positive or x.shape[0] > 1
    return m.linear(x).sum() * positive


def branch_in_front(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    if hidden.sum() > 0:
        hidden = hidden * 2
    assert torch.isfinite(hidden).all()
    return hidden.sum()


@pytest.mark.parametrize("body", [kept, branch_in_front])
def test_what_decides_is_refused(body: Body) -> None:
    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        capture(*small(body))


def test_in_layers_that_repeat() -> None:
    captured_equals_eager(Checked().double(), small(asserted)[1])
