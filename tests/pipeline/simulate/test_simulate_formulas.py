"""Steps and bubbles as their sources give them, p workers, m microbatches, seconds F, B = I + W."""

from __future__ import annotations

import pytest

from autopar.pipeline.schedules import Schedule, build
from autopar.pipeline.schedules.interleaved import interleaved
from autopar.pipeline.simulate import Costs, Simulated, StageCost, simulate

F, I, W = 1.0, 1.25, 0.75
B = I + W
SIZES = [(2, 4), (2, 7), (4, 8), (4, 16), (8, 24)]


def run(schedule: Schedule, parts: int = 1, f: float = F, i: float = I, w: float = W) -> Simulated:
    """Each stage is one of `parts` of what a worker does."""
    cost = StageCost(f / parts, i / parts, w / parts)
    return simulate(schedule, Costs((cost,) * schedule.stages))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_naive(p: int, m: int) -> None:
    """Nothing overlaps."""
    assert run(build("naive", p, m)).step == pytest.approx(m * p * (F + B))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p: int, m: int) -> None:
    """Bubble (K - 1) / (M + K - 1): arXiv:1811.06965, section 2.3."""
    simulated = run(build("gpipe", p, m))
    assert simulated.step == pytest.approx((m + p - 1) * (F + B))
    assert simulated.bubble_rates == pytest.approx([(p - 1) / (m + p - 1)] * p)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b(p: int, m: int) -> None:
    """(p - 1) (F + B), as GPipe: arXiv:2104.04473, section 2.2.1; arXiv:2401.10241, table 1."""
    assert run(build("1f1b", p, m)).step == pytest.approx((m + p - 1) * (F + B))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 24)])
@pytest.mark.parametrize("v", (2, 3))
def test_interleaved(p: int, m: int, v: int) -> None:
    """(p - 1) (F + B) / v: arXiv:2104.04473, section 2.2.2."""
    simulated = run(interleaved(p, m, v * p), parts=v)
    assert simulated.step == pytest.approx(m * (F + B) + (p - 1) * (F + B) / v)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 24)])
def test_zb_h1(p: int, m: int) -> None:
    """(p - 1) (F + I - W): arXiv:2401.10241, table 1."""
    simulated = run(build("zb-h1", p, m))
    assert simulated.step == pytest.approx(m * (F + B) + (p - 1) * (F + I - W))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 24)])
def test_zb_h2(p: int, m: int) -> None:
    """(p - 1) (F + I - 2 W) where steps follow without a barrier: arXiv:2401.10241, table 1."""
    simulated = run(build("zb-h2", p, m))
    assert simulated.longest_span == pytest.approx(m * (F + B) + (p - 1) * (F + I - 2 * W))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 24)])
def test_zb_h2_with_a_barrier(p: int, m: int) -> None:
    """Equal seconds leave no bubble inside, but workers start one F after the other."""
    simulated = run(build("zb-h2", p, m), f=1, i=1, w=1)
    assert simulated.longest_span == 3 * m
    assert simulated.step == 3 * m + (p - 1)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 7), (4, 8), (4, 16), (8, 24)])
def test_zb_v(p: int, m: int) -> None:
    """No bubble for equal seconds without a barrier: arXiv:2401.10241, section 6."""
    simulated = run(build("zb-v", p, m), parts=2, f=1, i=1, w=1)
    assert simulated.longest_span == pytest.approx(3 * m)
    assert simulated.step == pytest.approx(3 * m + (p - 1) / 2)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 7), (4, 8), (4, 16), (8, 24)])
def test_dualpipe_v(p: int, m: int) -> None:
    """As ZB-V where pairs of F and B take as long together as one by one."""
    simulated = run(build("dualpipe-v", p, m), parts=2, f=1, i=1, w=1)
    assert simulated.step == pytest.approx(3 * m + (p - 1) / 2)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 6), (4, 4), (4, 12), (6, 12), (8, 24)])
def test_chimera(p: int, m: int) -> None:
    """Bubble (D - 2) / (2 N + D - 2) for F = B: arXiv:2107.06925, table 2."""
    simulated = run(build("chimera", p, m), f=1, i=0.5, w=0.5)
    assert simulated.step == 2 * m + p - 2
    assert simulated.bubble_rates == pytest.approx([(p - 2) / (2 * m + p - 2)] * p)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (6, 6), (8, 8)])
def test_chimera_with_backwards_twice_as_long(p: int, m: int) -> None:
    """One unit of our lists: what they give, not a published figure."""
    simulated = run(build("chimera", p, m), f=1, i=1, w=1)
    assert simulated.step == pytest.approx(3 * m + (p // 2 - 1) * (1 + 2) + (p // 2 - 1) * 1)
