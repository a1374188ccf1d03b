"""Korthikanti et al. 2022, table 2: bytes of activations per layer, from captured graphs.

The paper counts in 16-bit precision, with masks of one byte, without the statistics of norms, which
are a thousandth here.  Its selective recomputation makes the scores of attention again in the
backward; that is what a fused kernel does.
"""

from __future__ import annotations

import pytest

from autopar.sharding.sharding_problem import Compilation
from tests.daily import daily
from tests.published.models import small

S, B = 2048, 1
SIZES = [(6144, 64), (12288, 96)]
"""Hidden size and heads of the paper's models of 22 and 175 billion parameters."""
T = 8


SEQUENCE = {"preset": "megatron_sp", "recompute": "gathers"}
"""The paper keeps shards, and gathers them again in the backward (section 4.2.2)."""


def per_layer(attention: str, hidden: int, heads: int, ranks: int, **options: str) -> float:
    """Kept bytes of three layers less those of two, in units of s b h."""
    made = [small(attention, hidden, heads, layers, ranks, B, **options) for layers in (2, 3)]
    two, three = map(kept_nbytes, made)
    return (three - two) / (S * B * hidden)


def kept_nbytes(made: Compilation) -> float:
    """As the plan says."""
    return made.plan.estimate.activation_nbytes


@pytest.mark.thorough
@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
def test_one_device(h: int, a: int) -> None:
    assert per_layer("eager", h, a, 1) == pytest.approx(34 + 5 * a * S / h, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
def test_tensor_parallel(h: int, a: int) -> None:
    found = per_layer("eager", h, a, T, preset="megatron")
    assert found == pytest.approx(10 + 24 / T + 5 * a * S / (h * T), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
def test_tensor_and_sequence_parallel(h: int, a: int) -> None:
    found = per_layer("eager", h, a, T, **SEQUENCE)
    assert found == pytest.approx((34 + 5 * a * S / h) / T, rel=1e-3)


@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
def test_tensor_parallel_and_selective(h: int, a: int) -> None:
    assert per_layer("sdpa", h, a, T, preset="megatron") == pytest.approx(10 + 24 / T, rel=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
def test_tensor_and_sequence_parallel_and_selective(h: int, a: int) -> None:
    assert per_layer("sdpa", h, a, T, **SEQUENCE) == pytest.approx(34 / T, rel=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("h", "a"), daily(SIZES, SIZES[:1]))
@pytest.mark.parametrize("preset", [None, "megatron"])
def test_full_recomputation(h: int, a: int, preset: str | None) -> None:
    options = {} if preset is None else {"preset": preset}
    ranks = 1 if preset is None else T
    found = per_layer("eager", h, a, ranks, recompute="full", **options)
    assert found == pytest.approx(2.0, rel=1e-6)
