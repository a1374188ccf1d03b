"""`torch.autograd.Function` is an operator: steps of models with it are those of one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import autopar
from tests.daily import daily, rotated
from tests.habits import opaque_jobs as jobs
from tests.pool import Pool, WorkerError

OTHERS = ("plain", "cov", "corrcoef", *jobs.NOT_LINEAR)
WITH_FUNCTIONS = [name for name in jobs.BETWEEN if name not in OTHERS]


def steps(pool: Pool, between: str, size: int, **options: Any) -> str:
    """Rank 0's emitted source, after three steps that are those of one process."""
    source: str = pool.run(size, partial(jobs.equal_steps, between, size, **options))[0]
    return source


@pytest.mark.parametrize(
    ("between", "preset"), rotated(WITH_FUNCTIONS, ["ddp", "fsdp", "megatron"], part=2)
)
def test_two_ranks(pool: Pool, between: str, preset: str) -> None:
    steps(pool, between, 2, fused=True, preset=preset)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("between", WITH_FUNCTIONS)
def test_other_numbers_of_ranks(pool: Pool, between: str, size: int) -> None:
    steps(pool, between, size, fused=size == 4, preset="fsdp")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("between", "schedule"), rotated(["round", "product", "local", "centred"], ["gpipe", "1f1b"])
)
def test_stages(pool: Pool, between: str, schedule: str) -> None:
    # Rows that look at each other cannot come in parts.
    parts = 1 if between == "centred" else 2
    steps(pool, between, 2, pipeline=autopar.Pipeline(2, schedule, parts))


@pytest.mark.parametrize("between", ["round", "product", "centred"])
def test_recomputed(pool: Pool, between: str) -> None:
    steps(pool, between, 2, preset="fsdp", recompute="full")


@pytest.mark.parametrize("between", ["cov", "corrcoef"])
def test_operators_that_check_values_before_they_warn(pool: Pool, between: str) -> None:
    steps(pool, between, 2, preset="fsdp")


@pytest.mark.thorough
def test_what_can_be_split_is(pool: Pool) -> None:
    """An experiment proves that rounding may be split by samples, and that centring may not."""
    source = steps(pool, "round", 2, preset="ddp")
    line = next(line for line in source.split("\n") if "opaque_jobs__Round" in line)
    assert "torch.ops.autopar_functions.tests_habits_opaque_jobs__Round.of_" in line
    assert "[8/x, 4, 16]" in line, source
    source = steps(pool, "centred", 2, preset="ddp")
    line = next(line for line in source.split("\n") if "opaque_jobs__BatchCentred" in line)
    assert "[8, 4, 16" in line or "/x]" in line, source


@pytest.mark.parametrize(
    ("between", "preset"),
    rotated(["normalised", "signs", "clamped"], ["ddp", "fsdp", "megatron", None]),
)
def test_backwards_that_are_not_linear(pool: Pool, between: str, preset: str | None) -> None:
    """No rank computes them on a part of the gradient."""
    steps(pool, between, 2, fused=True, preset=preset)


@pytest.mark.parametrize("preset", daily([None, "megatron", "ddp"], ["ddp"]))
def test_such_a_function_of_a_weight(pool: Pool, preset: str | None) -> None:
    """DDP computes with replicas, whose gradients are summed behind the function: refused."""
    if preset == "ddp":
        with pytest.raises(WorkerError, match=r"ConstraintError: .*Signs"):
            steps(pool, "weight's signs", 2, fused=True, preset=preset)
    else:
        steps(pool, "weight's signs", 2, fused=True, preset=preset)
