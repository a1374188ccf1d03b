"""Changes of tensors in containers and objects of the model are refused: a graph holds the values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.habits import held_jobs
from tests.pool import Pool

LAYOUTS: dict[str, dict[str, Any]] = {"ddp": {"preset": "ddp"}, "stages": {"pipeline": 2}}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changes_in_what_the_model_holds_are_refused(pool: Pool, layout: str) -> None:
    pool.run(2, held_jobs.refused, LAYOUTS[layout])


def test_a_forward_replaced_on_its_class_is_refused(pool: Pool) -> None:
    pool.run(2, held_jobs.class_patched, LAYOUTS["ddp"])
