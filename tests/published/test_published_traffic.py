"""What Megatron sends per layer: four all-reduces of b s h elements, or as many halves of them.

Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.published.models import small

S, B, H, A, T = 2048, 1, 8192, 64, 8
UNIT = 2 * B * S * H
"""Bytes of an activation between blocks."""


def per_layer(preset: str, scope: str = "microbatch") -> dict[tuple[str, str], float]:
    """Bytes by collective and direction of three layers less those of two, in units of b s h."""
    found: Counter[tuple[str, str]] = Counter()
    for layers, sign in ((3, 1), (2, -1)):
        for flow in small("sdpa", H, A, layers, T, B, preset=preset).plan.estimate.flows:
            if flow.scope == scope:
                found[flow.collective, flow.direction] += sign * flow.nbytes
    return {key: nbytes / UNIT for key, nbytes in found.items() if nbytes}


@pytest.mark.thorough
def test_tensor_parallelism() -> None:
    """Two all-reduces forward, two backward."""
    assert per_layer("megatron") == {
        ("all_reduce", "forward"): 2.0,
        ("all_reduce", "backward"): 2.0,
    }


def test_sequence_parallelism_sends_as_much() -> None:
    """An all-reduce is a reduce-scatter and an all-gather."""
    assert per_layer("megatron_sp") == {
        (kind, direction): 2.0
        for kind in ("all_gather", "reduce_scatter")
        for direction in ("forward", "backward")
    }


@pytest.mark.slow
def test_full_recomputation_sends_the_forward_again() -> None:
    """Six all-reduces: the third pair is the forward's, carried out in the backward."""
    found = Counter[str]()
    for layers, sign in ((3, 1), (2, -1)):
        plan = small("sdpa", H, A, layers, T, B, preset="megatron", recompute="full").plan
        for flow in plan.estimate.flows:
            found[flow.collective] += sign * flow.nbytes
    assert found["all_reduce"] / UNIT == pytest.approx(6.0, abs=1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 8])
def test_data_parallelism_sums_every_gradient_once_a_step(ranks: int) -> None:
    """In float32, the precision of the weights at rest: 4 bytes of each parameter."""
    plan = small("sdpa", 4096, 32, 2, ranks, ranks, preset="ddp").plan
    (flow,) = [flow for flow in plan.estimate.flows if flow.scope == "step"]
    count = sum(flow.nbytes for flow in [flow]) / 4
    assert flow.collective == "all_reduce"
    assert count == 12 * 2 * 4096**2 + 13 * 2 * 4096 + (51200 + 2048 + 2) * 4096
