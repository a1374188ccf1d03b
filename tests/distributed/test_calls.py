"""The public calls, as people use them, on real gloo processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.runtime import checkpoint
from tests import models
from tests.daily import daily
from tests.distributed import jobs
from tests.pool import Pool


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "mesh", "preset"),
    [
        pytest.param("gpt2", (2, 2), None, marks=pytest.mark.slow),
        ("mlp", (2,), "zero2"),
        pytest.param("bert", (2, 2), "fsdp_megatron", marks=pytest.mark.slow),
    ],
)
def test_adamw(pool: Pool, name: str, mesh: tuple[int, ...], preset: str | None) -> None:
    pool.run(len(mesh) * 2, jobs.adamw, name, mesh, preset)


@pytest.mark.parametrize(
    "preset", daily(["ddp", "zero2", "fsdp", "fsdp_megatron"], ["zero2", "fsdp_megatron"])
)
def test_accumulation(pool: Pool, preset: str) -> None:
    pool.run(4, jobs.accumulation, (2, 2), preset)


@pytest.mark.parametrize(("preset", "norm_type"), [("fsdp_megatron", 2.0), ("zero2", float("inf"))])
def test_clipping(pool: Pool, preset: str, norm_type: float) -> None:
    pool.run(4, jobs.clipping, (2, 2), preset, norm_type)


@pytest.mark.thorough
@pytest.mark.parametrize("preset", daily(["fsdp", "megatron"], ["fsdp"]))
def test_evaluation(pool: Pool, preset: str) -> None:
    pool.run(2, jobs.evaluation, (2,), preset)


@pytest.mark.thorough
def test_other_shapes(pool: Pool) -> None:
    pool.run(2, jobs.other_shapes, (2,))


@pytest.mark.thorough
def test_refused_shapes(pool: Pool) -> None:
    for message in pool.run(2, jobs.refused_shapes, (2,)):
        assert "replan=False" in message and "input_ids: int64[3, 16]" in message


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("preset", "replicas"), [("ddp", 4), ("megatron", 2), ("fsdp", 4), ("fsdp_megatron", 2)]
)
def test_local_input(pool: Pool, preset: str, replicas: int) -> None:
    assert pool.run(4, jobs.local_input, (2, 2), preset) == [replicas] * 4


def test_edited_source(pool: Pool, tmp_path: Path) -> None:
    pool.run(2, jobs.edited_source, (2,), str(tmp_path))


def test_names_and_groups(pool: Pool) -> None:
    pool.run(2, jobs.names_and_groups, (2,))


@pytest.mark.slow
def test_checkpoint_on_another_mesh_and_in_plain_pytorch(pool: Pool, tmp_path: Path) -> None:
    pool.run(4, jobs.checkpoint, str(tmp_path), True, (2, 2), "fsdp_megatron")
    pool.run(2, jobs.checkpoint, str(tmp_path), False, (2,), "zero2")
    case = models.gpt2()
    expected, _ = jobs.reference_steps(case, 2, torch.optim.AdamW, lr=1e-3)
    model = case[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert checkpoint.load(tmp_path / "step2", model, optimizer) == 2
    for key, value in expected.state_dict().items():
        assert torch.allclose(model.state_dict()[key], value, atol=1e-5), key


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "preset", "local"),
    [
        pytest.param("gpt2", None, False, marks=pytest.mark.slow),
        pytest.param("bert", "fsdp", False, marks=pytest.mark.slow),
        ("mlp", "ddp", True),
        pytest.param("llama", "zero2", False, marks=pytest.mark.slow),
    ],
)
def test_microbatches(pool: Pool, name: str, preset: str | None, local: bool) -> None:
    pool.run(2, jobs.microbatches, name, (2,), preset, local)


def test_refused_microbatches(pool: Pool) -> None:
    (first, _) = pool.run(2, jobs.refused_microbatches, "cnn", (2,), 2)
    assert "batch_norm" in first and "microbatches=1" in first
    (first, _) = pool.run(2, jobs.refused_microbatches, "mlp", (2,), 3)
    assert "8 cannot be cut into 3" in first


@pytest.mark.thorough
@pytest.mark.parametrize(
    "preset",
    daily(["ddp", "zero2", "fsdp", "fsdp_megatron"], ["zero2"]),
)
def test_bfloat16(pool: Pool, preset: str) -> None:
    pool.run(4, jobs.bfloat16, (2, 2), preset)


def test_bfloat16_batch_norms(pool: Pool) -> None:
    pool.run(2, jobs.bfloat16_norms, (2,), "ddp")


@pytest.mark.thorough
@pytest.mark.parametrize("preset", daily(["ddp", "fsdp"], ["fsdp"]))
def test_autocast(pool: Pool, preset: str) -> None:
    pool.run(2, jobs.autocast, (2,), preset)


def test_dropout_differs_between_shards(pool: Pool) -> None:
    one, other = pool.run(2, jobs.dropout, (2,), None, "ddp")
    assert len(one[0]) == 32
    assert one[0] != other[0], "shards share a mask"
    assert one[0] != one[1], "forwards share a mask"
    assert one[0] == one[2] and other[0] == other[2], "not reproducible"


def test_dropout_agrees_between_replicas(pool: Pool) -> None:
    """Ranks have different seeds of their own, and the same masks all the same."""
    one, other = pool.run(2, jobs.dropout, (2,), {"*": "[I]"}, None)
    assert len(one[0]) == 64
    assert one == other
    assert one[0] != one[1]


@pytest.mark.parametrize(
    "preset", daily([None, "ddp", "zero2", "fsdp", "megatron"], [None, "fsdp"])
)
def test_scalars_frozen_layers_and_state(pool: Pool, tmp_path: Path, preset: str | None) -> None:
    pool.run(2, jobs.scalars, (2,), preset, str(tmp_path))


def test_load_without_optimizer(pool: Pool, tmp_path: Path) -> None:
    for message in pool.run(2, jobs.load_without_optimizer, (2,), str(tmp_path)):
        assert message.startswith("CheckpointError") and "written without an optimizer" in message
