"""Low precision where sizes are padded: as the same precision gives on one process, nothing infinite."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import autopar
from tests.capture.compare import eager_loss
from tests.distributed.uneven_jobs import FORCED
from tests.pool import Pool
from tests.uneven import UNEVEN

RATE, STEPS = 0.1, 2
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3, "autocast": 2e-2}
SCALE = 2.0**12


def trains(name: str, mesh: tuple[int, ...], force: str, precision: str) -> list[str]:
    """Steps on padded sizes: losses, gradients and weights; which sizes are padded."""
    model, inputs, loss = UNEVEN[name]()
    region = torch.autocast("cpu", dtype=torch.bfloat16)
    low = DTYPES.get(precision)
    parallel = autopar.parallelize(
        copy.deepcopy(model), mesh, inputs, loss=loss, constraints=FORCED[force],
        precision=precision if low else region, hardware="cpu",
    )  # fmt: skip
    scaler = parallel.grad_scaler(init_scale=SCALE) if precision == "float16" else None
    optimizer = torch.optim.SGD(parallel.parameters(), lr=RATE)
    for _ in range(STEPS):
        single = copy.deepcopy(model).to(low) if low else copy.deepcopy(model)
        with contextlib.nullcontext() if low else region:
            want = eager_loss(single, inputs, loss)
        (want.float() * SCALE).backward()
        got = parallel.train_step(**inputs, scaler=scaler)
        assert abs(float(got) - float(want)) <= TOLERANCE[precision] * abs(float(want))
        if scaler is not None:
            scaler.unscale_(optimizer)
        same_gradients(parallel, single, precision)
        step(model, single)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == SCALE, "no step was skipped"
        optimizer.zero_grad()
    weights = parallel.full_state_dict()
    for key, parameter in model.named_parameters():
        assert torch.allclose(weights[key], parameter.detach(), atol=RATE * STEPS * 2e-2), key
    return sorted({f"{p.pad.size} -> {p.pad.to}" for p in parallel.plan.padding})


def same_gradients(parallel: autopar.Parallel, single: torch.nn.Module, precision: str) -> None:
    """As one process has them, in float32; none of what is frozen."""
    want = {
        key: p.grad.float() / SCALE for key, p in single.named_parameters() if p.grad is not None
    }
    scale = max(float(gradient.abs().max()) for gradient in want.values())
    for key, parameter in parallel.named_parameters():
        if key not in want:
            assert parameter.grad is None, key
            continue
        assert isinstance(parameter.grad, DTensor) and parameter.grad.dtype == torch.float32, key
        whole = parameter.grad.full_tensor()
        difference = float((whole - want[key]).abs().max())
        assert whole.isfinite().all() and difference <= TOLERANCE[precision] * scale, (
            f"{key}: {difference} of {scale}"
        )


@torch.no_grad()
def step(model: torch.nn.Module, single: Any) -> None:
    """SGD on weights in float32, of gradients in low precision."""
    for parameter, low in zip(model.parameters(), single.parameters(), strict=True):
        if low.grad is not None:
            parameter -= RATE * low.grad.float() / SCALE


@pytest.mark.parametrize(
    "precision",
    [
        "bfloat16",
        pytest.param("float16", marks=pytest.mark.slow),
        pytest.param("autocast", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize(
    ("name", "mesh", "force", "padded"),
    [
        ("uneven_five", (4,), "vocabulary", "5 -> 8"),
        pytest.param("uneven_half_frozen", (2,), "heads", "5 -> 6", marks=pytest.mark.slow),
        pytest.param("uneven_gpt2", (4,), "batch", "6 -> 8", marks=pytest.mark.slow),
    ],
)
def test_as_on_one_process(
    pool: Pool, name: str, mesh: tuple[int, ...], force: str, padded: str, precision: str
) -> None:
    for said in pool.run(mesh[0], trains, name, mesh, force, precision):
        assert padded in said
