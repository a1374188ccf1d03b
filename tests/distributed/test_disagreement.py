"""Ranks that disagree, and input that is wrong on all of them: the same clear error everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed import jobs
from tests.pool import Pool

CASES = [
    (jobs.different_models, "RankMismatchError", "the model"),
    (jobs.different_examples, "RankMismatchError", "the example inputs"),
    (jobs.different_batches, "RankMismatchError", "the batch of the first step"),
    (jobs.different_shapes, "RankMismatchError", "Pass every rank the same whole batch"),
    (jobs.different_shapes_of_stages, "RankMismatchError", "about the batch of the first step"),
    (
        jobs.different_calls,
        "RankMismatchError",
        "rank 0 compares the weather, but rank 1 has 'the t",
    ),
    (jobs.different_options, "RankMismatchError", "the options"),
    (jobs.first_rank_cannot_plan, "OverLimitError", "fits 1000 bytes"),
    (jobs.missing_input, "InputError", "this batch has no 'target', which they had"),
]


@pytest.mark.parametrize(("job", "kind", "words"), CASES)
def test_errors_on_all_ranks(pool: Pool, job: Callable[..., str], kind: str, words: str) -> None:
    for message in pool.run(2, job, (2,)):
        assert message.startswith(kind) and words in message, message


def test_a_mesh_of_another_size(pool: Pool) -> None:
    for message in pool.run(2, jobs.wrong_mesh, (2, 2)):
        assert message.startswith("MeshError") and "--nproc-per-node 4" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("this is not python", "cannot be imported"),
        ("x = 1", "no class MLP"),
        (None, "Cannot read"),
    ],
)
def test_broken_source(pool: Pool, tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "edited.py"
    if text is not None:
        path.write_text(text)
    for message in pool.run(2, jobs.broken_source, (2,), str(path)):
        assert message.startswith("SourceError") and words in message, message
