"""Where a conversion sends nothing, prices count a copy exactly where the runtime makes one."""

from __future__ import annotations

import pytest

from autopar.ir.collectives import OWN_OF
from autopar.ir.placement import I, P, R, S, Type
from tests.distributed import copy_jobs
from tests.pool import Pool

LETTERS = {"R": R, "I": I, "P": P}


def _steps() -> list[tuple[Type, Type]]:
    def kind(letter: str, dim: int) -> Type:
        return LETTERS.get(letter, S(dim))

    pairs = sorted(pair for pair in OWN_OF if "N" not in pair)
    return [(kind(a, dim), kind(b, 1 - dim)) for a, b in pairs for dim in (0, 1)]


@pytest.mark.parametrize(("source", "target"), list(dict.fromkeys(_steps())), ids=str)
def test_copies_are_those_of_the_runtime(pool: Pool, source: Type, target: Type) -> None:
    pool.run(2, copy_jobs.taken, source, target)
