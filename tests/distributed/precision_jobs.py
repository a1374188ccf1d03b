"""What every rank does to count the memory of steps in lower precision."""

from __future__ import annotations

import torch

import autopar
from autopar.runtime.parallel import Parallel
from tests import peaks
from tests.distributed import compression_jobs
from tests.distributed.compression_jobs import Net

WIDTH = 256


def memory(preset: str, shape: tuple[int, ...], precision: str) -> tuple[int, peaks.Peaks]:
    """Bytes that the plan predicts, and those of a step.

    The inputs are in the precision of the step: no cast of theirs is counted.
    """
    torch.manual_seed(0)
    batch = {k: v.bfloat16() for k, v in compression_jobs.batch(0, width=WIDTH).items()}
    parallel = autopar.parallelize(
        Net(WIDTH), shape, batch, preset=preset, precision=precision, hardware="cpu",
        optimizer="SGD(momentum=0.9)",
    )  # fmt: skip
    assert isinstance(parallel, Parallel)
    return int(parallel.plan.estimate.memory_nbytes), peaks.peaks_of(parallel, batch, 1e-3)
