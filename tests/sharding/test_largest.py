"""The largest batch: found in few tries, next to one that does not fit."""

from __future__ import annotations

from typing import cast

import pytest

import autopar
from autopar.compile.sweep import largest_batch
from autopar.errors import InputError
from autopar.sharding.landscape import Point
from autopar.sharding.largest import MOST, NEAR, largest
from autopar.sharding.sharding_problem import Compilation
from tests.cli.factories import good


@pytest.mark.parametrize("first", [1, 4, 24])
@pytest.mark.parametrize("limit", [0, 1, 3, 5, 7, 23, 24, 50, 1000, 99_999])
def test_it_stands_next_to_one_that_does_not_fit(first: int, limit: int) -> None:
    def at(batch: int) -> Point:
        return Point(batch, 1.0, cast(Compilation, ...) if batch <= limit else None)

    tried = list(largest(at, first))
    batches = [point.batch for point in tried]
    assert len(set(batches)) == len(batches) <= 30
    found = max((point.batch for point in tried if point.made), default=0)
    fails = min(point.batch for point in tried if not point.made)
    unit = first if limit >= first else 1
    assert found <= limit < fails and fails - found <= max(unit, found // NEAR)
    assert all(batch % unit == 0 for batch in batches if batch >= first)


def test_it_ends_where_everything_fits() -> None:
    tried = list(largest(lambda batch: Point(batch, 1.0, cast(Compilation, ...)), 3))
    assert tried[-1].batch <= MOST < 2 * tried[-1].batch


@pytest.mark.slow
def test_plans_of_the_batches_that_fit_do_fit() -> None:
    model, inputs, loss = good()
    plan = autopar.plan(model, (2,), inputs, loss=loss, hardware="h100")
    assert isinstance(plan, autopar.Plan)
    limit = 4.0 * plan.estimate.memory_nbytes
    tried = tuple(
        largest_batch(model, (2,), inputs, loss=loss, memory_limit=limit, hardware="h100")
    )
    fitting = [point for point in tried if point.made is not None]
    assert fitting and len(fitting) < len(tried)
    assert all(p.made and p.made.plan.estimate.memory_nbytes <= limit for p in fitting)
    with pytest.raises(InputError, match="every batch fits"):
        next(largest_batch(model, (2,), inputs, memory_limit="none", hardware="h100"))
