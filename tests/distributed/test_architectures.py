"""Parallel steps equal the single-process steps, for every architecture that can be captured."""

from __future__ import annotations

import pytest

from autopar.capture import capture
from autopar.errors import CaptureError
from tests import parity
from tests.architectures import ARCHITECTURES, REFUSED
from tests.daily import daily
from tests.pool import Pool

EVERY_DAY = ["mixtral"]
"""A second result that nobody reads; results of every layer, read later."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    daily([name for name in ARCHITECTURES if name not in REFUSED], EVERY_DAY, part=2),
)
def test_step(pool: Pool, name: str) -> None:
    """The solver's plan, presets and random plans on two ranks; every day one of each.

    `benchmarks/architectures` runs every architecture.
    """
    key, few = f"architectures.{name}", name in EVERY_DAY
    presets = (None, "megatron") if few else (None, "fsdp", "megatron")
    works = [parity.preset_work(key, (2,), preset) for preset in presets]
    works += [parity.random_work(key, (2,), seed) for seed in range(1 if few else 3)]
    pool.run(2, parity.check_all, works)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("mixtral_batched", "expert_parallel("), ("gshard", "[4/x, 8, 10, 80]")]
)
def test_experts_over_an_axis(pool: Pool, name: str, said: str) -> None:
    """Every rank has half of the experts."""
    work = parity.constrained_work(
        f"architectures.{name}",
        (2,),
        {"used:*.experts.up": "[S(0)]", "used:*.experts.down": "[S(0)]"}
        if name == "gshard"
        else {"used:*.experts.gate_up_proj": "[S(0)]", "used:*.experts.down_proj": "[S(0)]"},
    )
    assert said in work.source
    pool.run(2, parity.check_all, [work])


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, inputs, loss = ARCHITECTURES[name]()
    with pytest.raises(CaptureError, match=REFUSED[name]):
        capture(model, inputs, loss=loss)
