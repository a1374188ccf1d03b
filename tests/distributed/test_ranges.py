"""Ids and labels out of range raise `IndexError` on every plan, with the true size."""

from __future__ import annotations

import pytest

from tests.distributed import range_jobs as jobs
from tests.pool import Pool

SPLIT = {"used:*.wte.weight": "[S(0)]"}
WHOLE = {"stored:*.wte.weight": "[S(0)]", "used:*.wte.weight": "[R]"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "constraints", "size", "called"),
    [
        ("gpt2", SPLIT, 64, ("vocab_parallel_embedding", "cross_entropy_sum")),
        pytest.param(
            "uneven_gpt2",
            SPLIT,
            257,
            ("vocab_parallel_embedding", "cross_entropy_sum"),
            marks=pytest.mark.slow,
        ),
        ("uneven_gpt2", WHOLE, 257, ("padded_embedding", "cross_entropy_sum")),
    ],
)
def test_every_plan(
    pool: Pool, name: str, constraints: dict[str, str], size: int, called: tuple[str, str]
) -> None:
    numbers = (size, size + 500, -1)
    bad = [(key, number) for key in ("input_ids", "labels") for number in numbers]
    for source, found in pool.run(2, jobs.refused, name, constraints, bad):
        assert all(f"{function}(" in source for function in called), source
        for (key, number), message in zip(bad, found, strict=True):
            function = called[key == "labels"]
            if function == "cross_entropy_sum":
                assert message == f"Target {number} is out of bounds."
                continue
            assert message.startswith(function)
            assert f" {number} is out of range; valid are 0 ... {size - 1}" in message
            assert ("-100 (ignored)" in message) == (key == "labels")


@pytest.mark.parametrize("classes", [6, 5])
def test_split_classes(pool: Pool, classes: int) -> None:
    """Of six logits per sample three on each rank, all classes or the last one padding."""
    for found in pool.run(2, jobs.refused_targets, classes, (classes, classes + 500, -5)):
        for number, message in found.items():
            assert message == (
                f"vocab_parallel_cross_entropy ({classes} classes): target {number} is out of "
                f"range; valid are 0 ... {classes - 1} and -100 (ignored)."
            )
