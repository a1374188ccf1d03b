"""Operators that are not split by samples: equal to one process, or a message with a remedy."""

from __future__ import annotations

import re

import pytest

from tests.daily import daily
from tests.habits import sample_jobs as jobs
from tests.pool import Pool

PLACE = r"\(.*sample_jobs.py:\d+\)"
BAG = rf"bag/embedding_bag {PLACE} is an embedding bag .* a matrix of shape \[samples, length\]"
FFT = rf"no rule for aten.{{op}}.default by which .*: {{op}} {PLACE}, operands \[8, 8\]"
AS_ONE = r"Use pipeline=Pipeline\(microbatches=1\)"
AVERAGE = "The module 'norm' of Average has momentum=None.*Give it a number, as in momentum=0.1"
REFUSED = {
    ("bags", "ddp"): BAG,
    ("bags", "fsdp"): BAG,
    ("bags", "stages"): f"{BAG}.*{AS_ONE}",
    ("spectrum", "stages"): f"{FFT.replace('{op}', 'fft_rfft')}.*{AS_ONE}",
    ("real part", "stages"): f"{FFT.replace('{op}', 'fft_fft')}.*{AS_ONE}",
    ("batch norm", "stages"): f"norm/batch_norm.* mixes the samples of a batch.*{AS_ONE}",
    **{("average", way): AVERAGE for way in jobs.WAYS},
}
"""All others are equal."""
EVERY = [(name, way) for name in jobs.MODELS for way in jobs.WAYS]
TODAY = [
    ("bags", "ddp"), ("bags", "stages"), ("matrix", "ddp"), ("matrix", "stages"), ("rows", "stages"),
    ("spectrum", "stages"), ("spectrum", "stages, whole batch"), ("real part", "ddp"),
    ("average", "fsdp"), ("batch norm", "ddp"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "way"), daily(EVERY, TODAY))
def test_samples(pool: Pool, name: str, way: str) -> None:
    for found in pool.run(2, jobs.outcome, name, way):
        if (words := REFUSED.get((name, way))) is None:
            assert found == "equal"
        else:
            assert re.search(words, found), found
