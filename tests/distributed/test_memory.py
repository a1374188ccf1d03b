"""What the plan says about saved memory is what a tracker counts that knows nothing of the model."""

from __future__ import annotations

import gc

import pytest
import torch

from autopar import presets
from autopar.blocks import Recompute
from autopar.compile import compile_graph
from autopar.emit import emit
from autopar.mesh import Mesh
from autopar.posed import Settings
from autopar.rules import localize
from cost_models.hardware import load as load_hardware
from tests import parity
from tests.live import LiveBytes
from tests.pool import Pool

SLACK = 0.15
"""Small tensors (counts, masks, the loss) that the estimate leaves out, relative to the whole."""


def work(name: str, regather: bool, recompute: Recompute | None = None) -> tuple[parity.Work, int]:
    """The fsdp preset with weights gathered again or kept, and the predicted activation bytes."""
    case = parity.reference(name)
    mesh = Mesh.of(2)
    settings = Settings(
        optimizer="SGD",
        states=0.0,
        preset="fsdp",
        constraints=presets.load("fsdp", mesh),
        regather=regather,
        recompute=recompute,
    )
    plan = compile_graph(case.graph, mesh, load_hardware("cpu"), settings, case.saved).plan
    made = parity.Work(name, str(regather), plan.to_json(), emit(plan, case.graph, localize))
    return made, plan.estimate.activation_nbytes


def live_after_forward(work: parity.Work) -> tuple[int, int]:
    """Live bytes between forward and backward, and after the gradients are gone."""
    parallel = parity.parallel_of(work)
    inputs = parity.reference(work.name).inputs
    parallel(**inputs).backward()
    parallel.zero_grad()
    gc.collect()
    with LiveBytes() as live:
        loss = parallel(**inputs)
        gc.collect()
        held = live.nbytes
        loss.backward()
    parallel.zero_grad()
    del loss
    gc.collect()
    return held, live.nbytes


def test_regathered_weights_are_not_held(pool: Pool) -> None:
    kept, kept_predicted = work("gpt2", regather=False)
    regathered, regathered_predicted = work("gpt2", regather=True)
    held_kept, left = pool.run(2, live_after_forward, kept)[0]
    held_regathered, _ = pool.run(2, live_after_forward, regathered)[0]
    assert left <= 0.05 * held_kept, "the step leaks"
    for held, predicted in ((held_kept, kept_predicted), (held_regathered, regathered_predicted)):
        assert abs(held - predicted) <= SLACK * predicted, (held, predicted)
    saved = held_kept - held_regathered
    assert abs(saved - (kept_predicted - regathered_predicted)) <= SLACK * saved
    weights = sum(
        p.numel() * 8 for n, p in parity.reference("gpt2").model.named_parameters() if p.dim() > 1
    )
    assert saved >= 0.6 * weights, (saved, weights)


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_recomputed_blocks_hold_what_is_predicted(pool: Pool, name: str) -> None:
    modes: tuple[Recompute, ...] = ("none", "selective", "full")
    works = [work(name, regather=True, recompute=mode) for mode in modes]
    held = [pool.run(2, live_after_forward, made)[0][0] for made, _ in works]
    for bytes_held, (_, predicted) in zip(held, works, strict=True):
        assert abs(bytes_held - predicted) <= SLACK * predicted, (held, [p for _, p in works])
    assert held[2] < 0.9 * held[1] < 0.8 * held[0]


def test_the_tracker_counts() -> None:
    with LiveBytes() as live:
        kept = torch.ones(1000) + 1
        gone = torch.ones(1000) * 2
        del gone
    assert live.nbytes == kept.untyped_storage().nbytes()
