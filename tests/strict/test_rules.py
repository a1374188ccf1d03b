"""Each rule of the backend: a program that breaks it is caught, and one that keeps it is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pool import Pool, WorkerError
from tests.strict import broken


@pytest.fixture(scope="module")
def strict() -> Iterator[Pool]:
    workers = Pool("strict", AUTOPAR_STRICT_S="4")
    yield workers
    workers.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_collective(strict: Pool, ranks: int) -> None:
    strict.run(ranks, broken.everything)


@pytest.mark.thorough
def test_functional_collectives(strict: Pool) -> None:
    strict.run(2, broken.functional)


def test_a_result_is_garbage_until_it_is_waited_for(strict: Pool) -> None:
    assert strict.run(2, broken.read_early) == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            broken.another_shape,
            "float32 x 2[\\s\\S]*and rank [01] does[\\s\\S]*float32 x 3|x 3[\\s\\S]*x 2",
        ),
        (broken.another_kind, "all_reduce[\\s\\S]*broadcast|broadcast[\\s\\S]*all_reduce"),
        (broken.another_dtype, "float(32|64) x 2[\\s\\S]*float(64|32) x 2"),
        (broken.another_order, "float32 x [23][\\s\\S]*and rank [01] does[\\s\\S]*float32 x [32]"),
        (broken.input_changed, "its input of shape .2,. was changed before it was waited for"),
        (broken.result_written, "its result of shape .2,. was written before it was waited for"),
        (broken.unequal_split, "rank 1 expects .1, 2. elements, and .1, 1. come"),
        # This is how pipelines posted their receives before each direction had a group of its own.
        (broken.receives_first, "rank [01] receives float32 x 2 from [01][\\s\\S]*and rank"),
        (broken.tags_crossed, "float32 x [23][\\s\\S]*float32 x [32]"),
        (broken.alone, "all_reduce SUM of float32 x 2"),
    ],
)
def test_a_broken_rule_is_caught(strict: Pool, program: object, says: str) -> None:
    with pytest.raises(WorkerError, match=says):
        strict.run(2, program)  # type: ignore[arg-type]
