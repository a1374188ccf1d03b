"""Training steps on `tests.strict`: every preset, random plans, every schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from autopar.ir.blocks import MODES, Recompute
from tests import parity
from tests.asynchronous import Run, check_run
from tests.daily import daily
from tests.distributed import compression_jobs, low_sums_jobs
from tests.distributed.test_asynchronous import EVERYDAY as ASYNCHRONOUS
from tests.distributed.test_parity import PRESETS
from tests.distributed.test_pipelines import DEEP, SYNCHRONOUS, least_microbatches
from tests.pipelines import Line, check_lines
from tests.pool import Pool, WorkerError
from tests.strict import broken

MODELS = ("gpt2", "llama", "cnn")
FAST = ("mlp", (2,))


@pytest.fixture(scope="module")
def strict() -> Iterator[Pool]:
    workers = Pool("strict", AUTOPAR_STRICT_S="30")
    yield workers
    workers.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape"),
    daily([FAST, *((name, shape) for name in MODELS for shape in ((2,), (2, 2)))], [FAST]),
)
def test_presets(strict: Pool, name: str, shape: tuple[int, ...]) -> None:
    works = [parity.preset_work(name, shape, preset) for preset in PRESETS]
    strict.run(math.prod(shape), parity.check_all, works, limit_s=300)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "preset", "recompute"),
    daily(
        [
            (shape, preset, mode)
            for shape, preset in (((2,), "fsdp"), ((4,), "fsdp"), ((2, 2), "hsdp"))
            for mode in MODES
        ],
        [((2,), "fsdp", "none")],
    ),
)
def test_gathers_ahead(
    strict: Pool,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    preset: str,
    recompute: Recompute,
) -> None:
    """What is on its way is poisoned until it is waited for."""
    monkeypatch.setattr("autopar.sharding.assemble.WORTH", math.inf)
    work = parity.preset_work("deep.llama", shape, preset, recompute)
    assert "prefetch=True" in work.source
    strict.run(math.prod(shape), parity.check_all, [work], limit_s=300)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("compression", "preset"),
    daily(
        [
            (method, preset)
            for method in ("powersgd:2", "int8", "fp8")
            for preset in ("ddp", "zero2")
        ],
        [("powersgd:2", "ddp"), ("int8", "ddp")],
    ),
)
def test_compressed_gradients(strict: Pool, compression: str, preset: str) -> None:
    """Several buckets are on their way at a time, each with two collectives one after the other."""
    job = compression_jobs.nothing_is_lost_in_small_buckets
    for shape in ((2,), (4,)):
        strict.run(math.prod(shape), job, compression, preset, shape, limit_s=300)


@pytest.mark.parametrize("preset", daily(["ddp", "zero2", "fsdp"], ["ddp"]))
def test_sums_in_the_precision_of_the_step(strict: Pool, preset: str) -> None:
    strict.run(2, low_sums_jobs.accumulates, preset, limit_s=300)
    strict.run(2, low_sums_jobs.fails, preset, limit_s=300)


@pytest.mark.parametrize(
    ("name", "shape"),
    daily([(name, shape) for name in MODELS for shape in ((2,), (4,), (2, 2))], [("cnn", (2,))]),
)
def test_random_plans(strict: Pool, name: str, shape: tuple[int, ...]) -> None:
    works = [parity.random_work(name, shape, 500 + seed, recomputes=True) for seed in range(3)]
    strict.run(math.prod(shape), parity.check_all, works, limit_s=300)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schedule", "stages"),
    daily(
        dict.fromkeys(
            [
                ("interleaved", (2, 2)),
                *((s, DEEP[i % len(DEEP)]) for i, s in enumerate(SYNCHRONOUS)),
            ]
        ),
        [("interleaved", (2, 2))],
    ),
)
def test_every_schedule(strict: Pool, schedule: str, stages: tuple[int, ...]) -> None:
    if schedule == "chimera" and len(stages) % 2:
        pytest.skip("chimera's pipelines come in pairs")
    least = least_microbatches(schedule, len(stages))
    strict.run(4, check_lines, [Line("gpt2", (4,), stages, schedule, least)])


@pytest.mark.slow
@pytest.mark.parametrize("run", ASYNCHRONOUS, ids=str)
def test_asynchronous_schedules(strict: Pool, run: Run) -> None:
    strict.run(run.size, check_run, run)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", daily(["1f1b", "zb-h1"], ["zb-h1"]))
def test_one_group_for_both_directions_is_caught(schedule: str) -> None:
    """As pipelines transferred before: receives that are posted ahead hold up the sends."""
    workers = Pool("strict", AUTOPAR_STRICT_S="8")
    try:
        with pytest.raises(WorkerError, match=r"rank [01] receives"):
            workers.run(2, broken.one_group, [Line("gpt2", (2,), (1, 1), schedule, 4)])
    finally:
        workers.stop()
