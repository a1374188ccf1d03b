"""Weights that travel together have arrived together."""

from __future__ import annotations

import pytest

from autopar.ir.mesh import Mesh
from autopar.plans.grouping import groups
from tests import parity
from tests.random_plans import random_plan


@pytest.mark.parametrize("seed", [26, 27, 28, 29])
def test_a_later_hop_is_part_of_an_earlier_one(seed: int) -> None:
    case = parity.reference("bert")
    plan = random_plan(case.graph, Mesh.of(2, 2), seed, case.saved)
    together = groups(case.graph, plan.conversions, plan.mesh, plan.precision)
    found = {(member.name, group.hop): group for group in together for member in group.members}
    assert any(len(group.members) > 1 for group in found.values())
    for (_, hop), group in found.items():
        if hop:
            before = {id(found.get((member.name, hop - 1))) for member in group.members}
            assert len(before) == 1 and id(None) not in before
