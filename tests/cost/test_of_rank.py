"""What one rank's operators keep is asked of its shards: it is no share of what the whole ones keep."""

from __future__ import annotations

import pytest

from autopar.ir.graph import Saved, short
from autopar.memory.of_rank import divided, of_rank
from tests import parity, peaks


def both(name: str, preset: str, op: str) -> tuple[Saved, Saved]:
    """The first node of a kind that differs: as a share of the whole one, and asked on two ranks."""
    plan, case = peaks.planned(name, 2, preset=preset)[0], parity.reference(name)
    share = divided(case.saved, case.graph, plan.choice, plan.mesh)
    asked = of_rank(case.saved, case.graph, plan.choice, plan.conversions, plan.mesh)
    nodes = (n.name for n in case.graph.nodes if short(n.op) == op)
    return next((share[n], asked[n]) for n in nodes if share[n] != asked[n])


def test_one_head_is_expanded_without_a_copy() -> None:
    """Of two heads of keys the whole expansion is copied; each rank has one."""
    share, asked = both("architectures.mistral", "megatron", "reshape")
    assert (share.shares, asked.shares) == ((None,), (0,))


@pytest.mark.slow
def test_what_was_summed_or_gathered_lies_in_order() -> None:
    """Attention lays heads as its operands lay; where they were gathered, a reshape copies."""
    share, asked = both("architectures.gemma", "megatron", "reshape")
    assert (share.shares, asked.shares) == ((0,), (None,))
    share, asked = both("architectures.longformer_local", "megatron_sp", "linear")
    assert 0 not in share.operands and 0 in asked.operands


@pytest.mark.slow
def test_the_most_an_operator_holds_is_not_divided() -> None:
    """Half of the tokens need half of the rows, but all of the experts' gradients."""
    share, asked = both("architectures.mixtral", "zero2", "routed_experts")
    assert asked.backward_nbytes < 0.7 * share.backward_nbytes


def test_what_cannot_be_asked_is_divided() -> None:
    """Between two batches that were captured there are numbers on a line, and no operators."""
    plan, case = peaks.planned("gpt2", 2, preset="ddp")[0], parity.reference("gpt2")
    plain = dict(case.saved)
    given = of_rank(plain, case.graph, plan.choice, plan.conversions, plan.mesh)
    assert given == divided(plain, case.graph, plan.choice, plan.mesh)
    half = [name for name, kept in plain.items() if kept.extra_nbytes and not kept.like]
    assert half and all(given[name].extra_nbytes == plain[name].extra_nbytes // 2 for name in half)
